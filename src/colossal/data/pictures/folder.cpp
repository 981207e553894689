#include "colossal/data/pictures/folder.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "colossal/base/checksum.h"
#include "colossal/base/error.h"
#include "colossal/base/file_name.h"
#include "colossal/base/input_file.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"
#include "colossal/base/seed.h"
#include "colossal/data/pictures/picture.h"
#include "colossal/data/visible_files.h"

namespace colossal::data {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxPictureBytes = int64_t{256} << 20;  // maximum bytes of a file
constexpr int kTries = 10;

bool is_picture(const std::string& path) {
  return has_ending(path, ".png") || has_ending(path, ".jpg") || has_ending(path, ".jpeg");
}

bool is_other_picture(const std::string& path) {
  constexpr const char* kOthers[] = {".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif", ".heic"};
  return std::any_of(std::begin(kOthers), std::end(kOthers), [&](const char* each) { return has_ending(path, each); });
}

/// Returns the part of a picture of this size that a sample shows.
Box crop_box(int64_t width, int64_t height, uint64_t seed, const PictureOptions& options) {
  const auto whole_width = static_cast<double>(width), whole_height = static_cast<double>(height);
  const auto draw = [&](uint64_t choice) { return static_cast<double>(derive_seed(seed, choice) >> 11) * 0x1p-53; };
  for (int i = 0; options.augment && i < kTries; ++i) {
    const double area = options.min_crop_area + (1 - options.min_crop_area) * draw(4 * i + 1);
    const double ratio = std::exp(std::log(3.0 / 4) + (std::log(4.0 / 3) - std::log(3.0 / 4)) * draw(4 * i + 2));
    const double wide = std::sqrt(area * whole_width * whole_height * ratio), high = wide / ratio;
    if (wide <= whole_width && high <= whole_height)
      return {(whole_width - wide) * draw(4 * i + 3), (whole_height - high) * draw(4 * i + 4), wide, high};
  }
  // The largest part with the shape of a sample, or a share of it
  const double ratio = static_cast<double>(options.width) / static_cast<double>(options.height);
  const double share = options.augment ? 1 : options.middle;
  const double wide = std::min(whole_width, whole_height * ratio) * share, high = wide / ratio;
  return {(whole_width - wide) / 2, (whole_height - high) / 2, wide, high};
}

}  // namespace

bool PictureFolder::is_one(const std::string& path) {
  return has_visible_file(path, [&](const std::string& file) {
    return (is_picture(file) || is_other_picture(file)) && fs::path(file).parent_path() != fs::path(path);
  });
}

PictureFolder PictureFolder::open(const std::string& path) {
  PictureFolder folder{.path = path};
  LeftOut left_out;
  try {
    std::vector<fs::path> classes;
    for (const auto& entry : fs::directory_iterator(path)) {
      std::error_code nowhere;
      if (entry.path().filename().string().starts_with(".")) continue;
      if (entry.is_directory(nowhere)) classes.push_back(entry.path());
      if (entry.is_regular_file(nowhere)) left_out.add(entry.path().string(), " (in no class)");
    }
    std::sort(classes.begin(), classes.end());
    for (const fs::path& each : classes) {
      const std::vector<std::string> found = visible_files(each.string(), is_picture, &left_out);
      if (found.empty()) continue;
      for (const std::string& file : found) {
        folder.names.push_back(fs::path(file).lexically_relative(path).string());
        folder.labels.push_back(static_cast<int64_t>(folder.classes.size()));
      }
      folder.classes.push_back(each.filename().string());
    }
  } catch (const fs::filesystem_error& error) {
    throw Error("data", concat("cannot read ", error.path1().string(), ": ", error.code().message()));
  }
  folder.left_out = left_out.notice(path);
  require(!folder.names.empty(), "data", "no pictures in ", path,
          ": there must be a folder for each class, with .png or .jpg files in it",
          folder.left_out ? "; " + *folder.left_out : "");
  return folder;
}

std::pair<PictureFolder, PictureFolder> PictureFolder::split(double held_out) const {
  std::pair<PictureFolder, PictureFolder> parts{{path, {}, {}, classes}, {path, {}, {}, classes}};
  for (size_t i = 0; i < names.size(); ++i) {
    const bool is_held_out = static_cast<double>(derive_seed(0, names[i]) >> 11) * 0x1p-53 < held_out;
    PictureFolder& part = is_held_out ? parts.second : parts.first;
    part.names.push_back(names[i]);
    part.labels.push_back(labels[i]);
  }
  return parts;
}

void PictureFolder::number_as(const std::vector<std::string>& order) {
  const std::vector<int64_t> numbers = class_numbers(classes, order, path);
  for (int64_t& label : labels) label = numbers[label];
  classes = order;
}

std::vector<int64_t> class_numbers(const std::vector<std::string>& classes, const std::vector<std::string>& order,
                                   const std::string& path) {
  std::vector<int64_t> numbers;
  for (const std::string& name : classes) {
    const auto found = std::find(order.begin(), order.end(), name);
    require(found != order.end(), "data", "the class ", printable(name), " of ", path, " must be one of the ",
            order.size(), " of the model or its training pictures");
    numbers.push_back(found - order.begin());
  }
  return numbers;
}

PictureSamples::PictureSamples(PictureFolder folder, PictureOptions options)
    : folder_(std::move(folder)), options_(std::move(options)), normalization_(options_.mean, options_.deviation) {
  require(!folder_.names.empty(), "data", "there must be pictures: none in this part of ", folder_.path);
  require(options_.width >= 1 && options_.height >= 1, "data", "pictures need sides of at least 1: got ",
          options_.width, " x ", options_.height);
  Checksum sum;
  for (const std::string& name : folder_.names) {
    std::error_code failed;
    const auto line = concat(name, " ", fs::file_size(folder_.path + "/" + name, failed), "\n");
    sum.update(line.data(), line.size());
  }
  fingerprint_ = concat(folder_.names.size(), " pictures, ", sum.hex());
}

tensor::Batch PictureSamples::make(int64_t rows) const {
  return image_batch(at::empty({rows, 3, options_.height, options_.width}, at::kFloat),
                     at::zeros({rows, 1}, at::kLong));
}

void PictureSamples::read(int64_t index, uint64_t seed, float* out) const {
  const std::string path = folder_.path + "/" + folder_.names[index];
  const auto file = InputFile::open(path);
  require(file->size() <= kMaxPictureBytes, "data", path, " has more than ", kMaxPictureBytes, " bytes");
  Box box{};
  const Picture picture = decode_picture(file->content(), path, [&](int64_t width, int64_t height) {
    return Crop{box = crop_box(width, height, seed, options_), options_.width, options_.height};
  });
  const Picture part = resample(picture, box, options_.width, options_.height);
  const bool mirrored = options_.augment && derive_seed(seed, uint64_t{0}) % 2 == 1;
  normalization_.write(part, mirrored, out);
}

void PictureSamples::fill(int64_t index, uint64_t seed, tensor::Batch& batch, int64_t row) const {
  float* out = batch.at("images").mutable_data_ptr<float>() + row * 3 * options_.height * options_.width;
  for (int64_t tried = 0;; ++tried, index = (index + 1) % count()) {
    try {
      read(index, seed, out);
      batch.at("labels").mutable_data_ptr<int64_t>()[row] = folder_.labels[index];
      return;
    } catch (const Error& error) {
      if (options_.on_error == OnError::Refuse)
        throw Error("data", concat(error.message(), "; to train without it set data.on_error = \"skip\""));
      if (tried + 1 >= count()) throw;
      const std::lock_guard lock(mutex_);
      skipped_records_.add(error.message());
    }
  }
}

nlohmann::json PictureSamples::traits() const {
  const PictureOptions& o = options_;
  nlohmann::json traits{{"images", fingerprint_}, {"side", o.width},          {"augment", o.augment},
                        {"mean", o.mean},         {"deviation", o.deviation}, {"least_area", o.min_crop_area}};
  if (o.height != o.width) traits["height"] = o.height;
  if (o.middle != PictureOptions().middle) traits["middle"] = o.middle;
  return traits;
}

std::vector<std::string> PictureSamples::take_notices() const {
  const std::lock_guard lock(mutex_);
  return skipped_records_.take_notices();
}

}  // namespace colossal::data
