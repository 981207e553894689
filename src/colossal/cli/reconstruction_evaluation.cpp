#include "colossal/cli/reconstruction_evaluation.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstdio>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/file_name.h"
#include "colossal/base/input_file.h"
#include "colossal/base/json.h"
#include "colossal/base/json_fields.h"
#include "colossal/base/number.h"
#include "colossal/data/pictures/picture.h"
#include "colossal/data/visible_files.h"
#include "colossal/evaluate/picture_similarity.h"
#include "colossal/models/autoencoder.h"
#include "colossal/nn/batch_step.h"

namespace colossal::cli {
namespace {

constexpr int64_t kMaxEncodedBytes = int64_t{256} << 20;

/// Returns the middle of the picture in a file, with sides that `factor` divides.
data::Picture middle_of(const std::string& path, int64_t factor) {
  const auto file = InputFile::open(path);
  require(file->size() <= kMaxEncodedBytes, "evaluate", path, " has more than ", kMaxEncodedBytes, " bytes");
  data::Box box{};
  const data::Picture whole = data::decode_picture(file->content(), path, [&](int64_t width, int64_t height) {
    const int64_t columns = width / factor * factor, rows = height / factor * factor;
    require(columns >= evaluate::kSimilarityWindow && rows >= evaluate::kSimilarityWindow, "evaluate", path,
            " must have sides of at least ", evaluate::kSimilarityWindow, " pixels in whole cells of ", factor,
            ": got ", width, " x ", height);
    box = {static_cast<double>((width - columns) / 2), static_cast<double>((height - rows) / 2),
           static_cast<double>(columns), static_cast<double>(rows)};
    return data::Crop{box, columns, rows};
  });
  return data::resample(whole, box, static_cast<int64_t>(box.width), static_cast<int64_t>(box.height));
}

/// Returns the batch of a picture, whose pixels become those of [-1, 1].
tensor::Batch batch_of(const data::Picture& picture) {
  using tensor::Dim;
  const at::Tensor bytes = at::tensor(picture.rgb, at::kByte).view({1, picture.height, picture.width, 3});
  tensor::Batch batch;
  batch.add("images", {bytes.permute({0, 3, 1, 2}).to(at::kFloat).contiguous() / 127.5 - 1,
                       {Dim::Row, Dim::Other, Dim::Other, Dim::Other}});
  return batch;
}

/// Returns the picture of pixels [1, pixels, 3] in [-1, 1].
data::Picture picture_of(const at::Tensor& pixels, const data::Picture& like) {
  const at::Tensor bytes = ((pixels.to(at::kCPU, at::kDouble) + 1) * 127.5).round().clamp(0, 255).to(at::kByte);
  const uint8_t* const first = bytes.const_data_ptr<uint8_t>();
  return {.width = like.width, .height = like.height, .rgb = std::vector<uint8_t>(first, first + bytes.numel())};
}

}  // namespace

int evaluate_reconstruction(const std::string& folder, bool as_json, const LoadedModel& loaded) {
  distributed::DistributedModel& model = *loaded.saved.model;
  const models::ModelShape& shape = model.model().shape;
  const auto sizes = shape.part<models::AutoencoderSizes>();
  require(sizes.channels > 0 && sizes.pixel_channels == 3, "evaluate",
          "--reconstruct needs a model that encodes and decodes pictures in color: got one that ",
          shape.task().purpose());
  const std::vector<std::string> files = data::visible_files(folder, [](const std::string& path) {
    return has_ending(path, ".png") || has_ending(path, ".jpg") || has_ending(path, ".jpeg");
  });
  require(!files.empty(), "evaluate", "--reconstruct must name a folder with .png or .jpg files: got ", folder);
  const at::NoGradGuard no_grad;
  const auto& parameters = model.parameters().options();
  const auto numbers = at::TensorOptions(parameters.device).dtype(at::promote_types(parameters.dtype, at::kFloat));
  double decibels = 0, likeness = 0;
  for (const std::string& file : files) {
    const data::Picture picture = middle_of(file, sizes.factor);
    const at::Tensor pixels = model.everywhere(
        nn::step_of(batch_of(picture)),
        [](int, const models::States& end, const nn::ForwardContext&) {
          return end.at(models::AutoencoderStates::hidden).contiguous();
        },
        at::empty({1, picture.width * picture.height, 3}, numbers));
    const data::Picture reconstruction = picture_of(pixels, picture);
    decibels += evaluate::peak_signal_to_noise(picture, reconstruction);
    likeness += evaluate::structural_similarity(picture, reconstruction);
  }
  if (!loaded.speaks()) return 0;
  const auto count = static_cast<double>(files.size());
  if (as_json)
    std::puts(json_line(nlohmann::ordered_json{
                            {"psnr", decibels / count}, {"ssim", likeness / count}, {"pictures", files.size()}})
                  .c_str());
  else
    std::printf("psnr %s dB, ssim %s, %zu pictures\n", fixed_text(decibels / count, 2).c_str(),
                fixed_text(likeness / count, 4).c_str(), files.size());
  return 0;
}

}  // namespace colossal::cli
