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
#include "colossal/data/videos/video.h"
#include "colossal/data/visible_files.h"
#include "colossal/evaluate/picture_similarity.h"
#include "colossal/models/autoencoder.h"
#include "colossal/models/autoencoder_clips.h"
#include "colossal/nn/batch_step.h"

namespace colossal::cli {
namespace {

constexpr int64_t kMaxEncodedBytes = int64_t{256} << 20, kMaxClipBytes = int64_t{4} << 30;

/// Returns the middle of a picture of these sides, with sides that `factor` divides.
data::Box middle_box(int64_t width, int64_t height, const std::string& path, int64_t factor) {
  const int64_t columns = width / factor * factor, rows = height / factor * factor;
  require(columns >= evaluate::kSimilarityWindow && rows >= evaluate::kSimilarityWindow, "evaluate", path,
          " must have sides of at least ", evaluate::kSimilarityWindow, " pixels in whole cells of ", factor, ": got ",
          width, " x ", height);
  return {static_cast<double>((width - columns) / 2), static_cast<double>((height - rows) / 2),
          static_cast<double>(columns), static_cast<double>(rows)};
}

data::Picture part_of(const data::Picture& whole, const data::Box& box) {
  return data::resample(whole, box, static_cast<int64_t>(box.width), static_cast<int64_t>(box.height));
}

/// Returns the middle of the picture in a file.
data::Picture middle_of(const std::string& path, int64_t factor) {
  const auto file = InputFile::open(path);
  require(file->size() <= kMaxEncodedBytes, "evaluate", path, " has more than ", kMaxEncodedBytes, " bytes");
  data::Box box{};
  const data::Picture whole = data::decode_picture(file->content(), path, [&](int64_t width, int64_t height) {
    box = middle_box(width, height, path, factor);
    return data::Crop{box, static_cast<int64_t>(box.width), static_cast<int64_t>(box.height)};
  });
  return part_of(whole, box);
}

/// Returns the middles of all frames of a video that the autoencoder takes: its first ones.
std::vector<data::Picture> frames_of(const std::string& path, const models::AutoencoderSizes& sizes) {
  const auto file = InputFile::open(path);
  const auto video = data::open_video(data::bytes_of(*file), path);
  const data::Box box = middle_box(video->size().width, video->size().height, path, sizes.factor);
  const auto most = static_cast<size_t>(kMaxClipBytes / (3 * box.width * box.height));
  std::vector<data::Picture> frames;
  while (video->next()) {
    require(frames.size() < most, "evaluate", path, " has frames of more than ", kMaxClipBytes, " bytes; cut it");
    frames.push_back(part_of(video->picture(), box));
  }
  require(!frames.empty(), "evaluate", path, " must have a frame: got none");
  const bool is_whole = sizes.frames > 0 && sizes.chunk_frames == 0;
  if (is_whole) frames.resize((frames.size() - 1) / sizes.frame_factor * sizes.frame_factor + 1);
  return frames;
}

/// Returns pixels [1, 3, height, width] in [-1, 1].
at::Tensor signed_pixels_of(const data::Picture& picture) {
  const at::Tensor bytes = at::tensor(picture.rgb, at::kByte).view({1, picture.height, picture.width, 3});
  return bytes.permute({0, 3, 1, 2}).to(at::kFloat).contiguous() / 127.5 - 1;
}
tensor::Batch batch_of(const data::Picture& picture) {
  using tensor::Dim;
  tensor::Batch batch;
  batch.add("images", {signed_pixels_of(picture), {Dim::Row, Dim::Other, Dim::Other, Dim::Other}});
  return batch;
}

/// Returns the picture of contiguous pixels [pixels, 3], or [1, pixels, 3], in [-1, 1].
data::Picture picture_of(const at::Tensor& pixels, const data::Picture& like) {
  const at::Tensor bytes = ((pixels.to(at::kCPU, at::kDouble) + 1) * 127.5).round().clamp(0, 255).to(at::kByte);
  const uint8_t* const first = bytes.const_data_ptr<uint8_t>();
  return {.width = like.width, .height = like.height, .rgb = std::vector<uint8_t>(first, first + bytes.numel())};
}

/// Sums over pictures and videos.
struct Similarities {
  double decibels = 0, likeness = 0;
  int64_t pictures = 0, videos = 0;
};

Similarities similarities_of(const data::Picture& a, const data::Picture& b) {
  return {.decibels = evaluate::peak_signal_to_noise(a, b), .likeness = evaluate::structural_similarity(a, b)};
}

/// Adds a picture.
void add_picture(const std::string& path, distributed::DistributedModel& model, const models::AutoencoderSizes& sizes,
                 Similarities& sums) {
  const auto& parameters = model.parameters().options();
  const auto numbers = at::TensorOptions(parameters.device).dtype(at::promote_types(parameters.dtype, at::kFloat));
  const data::Picture picture = middle_of(path, sizes.factor);
  const at::Tensor pixels = model.everywhere(
      nn::step_of(batch_of(picture)),
      [](int, const models::States& end, const nn::ForwardContext&) {
        return end.at(models::AutoencoderStates::hidden).contiguous();
      },
      at::empty({1, picture.width * picture.height, 3}, numbers));
  const Similarities own = similarities_of(picture, picture_of(pixels, picture));
  sums.decibels += own.decibels, sums.likeness += own.likeness, ++sums.pictures;
}

/// Adds the means over the frames of a video, which passes in chunks of time.
void add_video(const std::string& path, distributed::DistributedModel& distributed,
               const models::AutoencoderSizes& sizes, Similarities& sums) {
  const std::vector<data::Picture> frames = frames_of(path, sizes);
  const auto count = static_cast<int64_t>(frames.size());
  const auto& parameters = distributed.parameters().options();
  const models::FrameReader read = [&](int64_t first, int64_t some) {
    std::vector<at::Tensor> pixels;
    for (int64_t i = first; i < first + some; ++i)
      pixels.push_back(signed_pixels_of(frames.at(static_cast<size_t>(i))));
    return at::stack(pixels, 2).to(parameters.device, at::promote_types(parameters.dtype, at::kFloat));
  };
  Similarities own;
  const auto compare = [&](const at::Tensor& some) {
    for (const at::Tensor& frame : some[0].unbind(1)) {
      const data::Picture& like = frames.at(static_cast<size_t>(own.pictures++));
      const Similarities one = similarities_of(like, picture_of(frame.flatten(1).t().contiguous(), like));
      own.decibels += one.decibels, own.likeness += one.likeness;
    }
  };
  distributed.at_end(
      [&](const auto&) {
        const models::Model& model = distributed.decoding_model();
        const models::ChunkOptions options{.parameters = &distributed.parameters()};
        std::vector<at::Tensor> means;
        models::encode_in_chunks(
            model, count, read, [&](const at::Tensor& moments) { means.push_back(moments.chunk(2, 1)[0]); }, options);
        models::decode_in_chunks(model, at::cat(means, 2), compare, count, options);
        return means.front();  // not read, because no pipeline cuts the model
      },
      {});
  const auto all = static_cast<double>(count);
  sums.decibels += own.decibels / all, sums.likeness += own.likeness / all, ++sums.videos;
}

void print_similarities(const Similarities& sums, bool as_json) {
  const auto count = static_cast<double>(sums.pictures + sums.videos);
  const double decibels = sums.decibels / count, likeness = sums.likeness / count;
  if (as_json) {
    nlohmann::ordered_json line{{"psnr", decibels}, {"ssim", likeness}, {"pictures", sums.pictures}};
    if (sums.videos > 0) line["videos"] = sums.videos;
    std::puts(json_line(line).c_str());
    return;
  }
  const std::string videos = sums.videos > 0 ? concat(", ", sums.videos, " videos") : "";
  std::printf("psnr %s dB, ssim %s, %lld pictures%s\n", fixed_text(decibels, 2).c_str(),
              fixed_text(likeness, 4).c_str(), static_cast<long long>(sums.pictures), videos.c_str());
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
    return has_ending(path, ".png") || has_ending(path, ".jpg") || has_ending(path, ".jpeg") ||
           data::has_video_ending(path);
  });
  require(!files.empty(), "evaluate", "--reconstruct must name a folder with .png or .jpg files, or videos: got ",
          folder);
  const at::NoGradGuard no_grad;
  Similarities sums;
  for (const std::string& file : files) {
    if (!data::has_video_ending(file)) {
      add_picture(file, model, sizes, sums);
      continue;
    }
    require(loaded.world.size() == 1, "evaluate", "--reconstruct reads videos on one rank: got ", loaded.world.size(),
            " ranks and ", file, "; leave --parallel out");
    add_video(file, model, sizes, sums);
  }
  if (loaded.speaks()) print_similarities(sums, as_json);
  return 0;
}

}  // namespace colossal::cli
