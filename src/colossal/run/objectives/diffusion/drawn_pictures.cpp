#include "colossal/run/objectives/diffusion/drawn_pictures.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "colossal/base/checksum.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/input_file.h"
#include "colossal/base/join.h"
#include "colossal/base/json_file.h"
#include "colossal/base/number.h"
#include "colossal/data/pictures/folder.h"
#include "colossal/data/pictures/picture.h"
#include "colossal/data/pictures/picture_header.h"
#include "colossal/data/pictures/shapes.h"
#include "colossal/data/videos/clip_lengths.h"
#include "colossal/run/objective.h"
#include "colossal/run/objectives/diffusion/drawn_clips.h"
#include "colossal/run/objectives/diffusion/file_checksums.h"
#include "colossal/run/objectives/diffusion/latents_of_run.h"
#include "colossal/run/objectives/text_data.h"

namespace colossal::run {
namespace {

constexpr const char* kSkipRemedy = "; to train without it set data.on_error = \"skip\"";
constexpr int64_t kMaxPictureFile = int64_t{1} << 28;
constexpr uint64_t kShapeSeed = 0x5afe;  // of the drawn shapes that are encoded, in all runs

/// Pictures with a folder for each class, whose names are their captions.
class ClassFolder final : public data::CaptionedPictures {
 public:
  static std::shared_ptr<ClassFolder> open(const std::string& path) {
    data::PictureFolder folder = data::PictureFolder::open(path);
    std::vector<data::CaptionedPicture> pictures;
    for (size_t i = 0; i < folder.names.size(); ++i) {
      const auto file = InputFile::open(path + "/" + folder.names[i]);
      const data::PictureHeader header = data::read_picture_header(data::bytes_of(*file), file->path());
      pictures.push_back({.name = folder.names[i],
                          .width = header.upright_width(),
                          .height = header.upright_height(),
                          .caption = folder.classes.at(static_cast<size_t>(folder.labels[i]))});
    }
    std::vector<std::string> notices;
    if (folder.left_out) notices.push_back(*folder.left_out);
    return std::shared_ptr<ClassFolder>(new ClassFolder(std::move(folder), std::move(pictures), std::move(notices)));
  }
  std::string bytes(int64_t index) const override {
    return read_file(folder_.path + "/" + at(index).name, kMaxPictureFile);
  }
  data::StampedFile stamped_file(int64_t index) const override {
    std::error_code failed;
    const std::string path =
        std::filesystem::absolute(folder_.path + "/" + at(index).name, failed).lexically_normal().string();
    return {path, file_stamp(path)};
  }
  const std::vector<std::string>& classes() const { return folder_.classes; }
  int64_t label(int64_t index) const { return folder_.labels.at(static_cast<size_t>(index)); }

 private:
  ClassFolder(data::PictureFolder folder, std::vector<data::CaptionedPicture> pictures,
              std::vector<std::string> notices)
      : CaptionedPictures(std::move(pictures), std::move(notices)), folder_(std::move(folder)) {}
  data::PictureFolder folder_;
};

/// Returns the numbers that the classes of the data have in the model.
std::vector<int64_t> numbers_in_model(const std::vector<std::string>& classes, const PipelineSource& pipeline,
                                      const std::string& path) {
  require(static_cast<int64_t>(classes.size()) <= pipeline.sizes.classes, "model",
          "classes must hold those of the pictures: got ", pipeline.sizes.classes, ", ", path, " has ", classes.size(),
          "; set model.classes");
  if (!pipeline.class_names.empty()) return data::class_numbers(classes, pipeline.class_names, path);
  std::vector<int64_t> numbers(classes.size());
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<int64_t>(i);
  return numbers;
}

/// Returns CaptionedOptions::text_column.
std::string caption_column(const DataConfig& data) {
  if (data.text_columns == DataConfig().text_columns) return "";
  require(data.text_columns.size() == 1, "data", "text_columns must name the one column that has the captions: got ",
          join(data.text_columns));
  return data.text_columns.front();
}

/// Opens the files of a path, and sets the label of each picture and the names of the classes.
DrawnPictures open_files(const std::string& path, int64_t more_shapes, const Config& config, const DrawnDataKeys& keys,
                         const PipelineSource& pipeline, const data::PictureSize& size, bool reads_captions = true) {
  const bool are_clips = pipeline.sizes.frames > 0;
  DrawnPictures drawn{.fps = are_clips ? keys.fps : 0};
  const auto shapes = data::parse_builtin_shapes(path);
  if (!pipeline.reads_text() && !shapes) {
    require(data::PictureFolder::is_one(path), "data",
            "path must be \"builtin-shapes\", or a folder with a folder of pictures for each class: got ", path);
    const auto folder = ClassFolder::open(path);
    drawn.files = folder;
    drawn.class_names = folder->classes();
    const std::vector<int64_t> numbers = numbers_in_model(drawn.class_names, pipeline, path);
    for (int64_t i = 0; i < folder->count(); ++i)
      drawn.pictures.push_back({.label = numbers.at(static_cast<size_t>(folder->label(i)))});
    return drawn;
  }
  drawn.files = data::open_captioned(shapes ? concat("builtin-shapes:", *shapes + more_shapes) : path,
                                     {.on_error = on_error_of(config.data),
                                      .text_column = caption_column(config.data),
                                      .width = size.width,
                                      .height = size.height,
                                      .seed = kShapeSeed,
                                      .reads_captions = reads_captions,
                                      .has_videos = are_clips,
                                      .frames = are_clips ? lengths_of_clips(keys, pipeline, {1}).frames.back() : 1,
                                      .fps = keys.fps,
                                      .has_controls = trains_control(config)});
  drawn.pictures.resize(static_cast<size_t>(drawn.files->count()));
  for (int64_t i = 0; are_clips && i < drawn.files->count(); ++i) {
    const double seconds = drawn.files->at(i).seconds;
    drawn.pictures[static_cast<size_t>(i)].reached = seconds > 0 ? data::frames_reached(seconds, keys.fps) : 1;
  }
  if (pipeline.reads_text()) return drawn;
  drawn.class_names = data::shape_names();
  const std::vector<int64_t> numbers = numbers_in_model(drawn.class_names, pipeline, path);
  for (size_t i = 0; i < drawn.pictures.size(); ++i)
    drawn.pictures[i].label = numbers.at(static_cast<size_t>(data::shape_of(static_cast<int64_t>(i))));
  return drawn;
}

/// Sets what identifies each picture. Drawn shapes follow from their number.
void identify(DrawnPictures& drawn, bool are_shapes, const Config& config, const DrawnDataKeys& keys) {
  const std::string folder = keys.encodes_in_step() ? config.run.folder + "/latents" : folder_of_latents(config, keys);
  FileChecksums checksums(folder + "/checksums.jsonl");
  for (size_t i = 0; i < drawn.pictures.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    const data::CaptionedPicture& file = drawn.files->at(index);
    drawn.pictures[i].content = are_shapes ? concat("shape-", kShapeSeed, "-", i, "-", file.width, "x", file.height)
                                           : checksums.of(*drawn.files, index);
  }
  checksums.store();
}

/// Returns the sizes of the files of training.
std::vector<data::PictureSize> trained_sizes(const DrawnPictures& drawn) {
  std::vector<data::PictureSize> sizes;
  for (const int64_t i : drawn.training) sizes.push_back({drawn.files->at(i).width, drawn.files->at(i).height});
  return sizes;
}

std::vector<data::PictureSize> buckets_of(const DrawnDataKeys& keys, const PipelineSource& pipeline,
                                          const data::PictureSize& size) {
  const bool takes_any = pipeline.sizes.classes == 0;  // a model with classes draws one size
  // Small pictures, as of examples, have one bucket unless the user asks for others.
  const bool is_small = keys.buckets == DrawnDataKeys().buckets && std::min(size.width, size.height) < keys.buckets;
  return data::bucket_sizes({.size = size,
                             .multiple = takes_any && !is_small ? keys.buckets : 0,
                             .grid = pipeline.factor * pipeline.sizes.side});
}

bool is_held_out(const std::string& name, double share) {
  return static_cast<double>(checksum_number(name.data(), name.size()) >> 11) * 0x1p-53 < share;
}

}  // namespace

data::PictureSize size_of_pictures(const DrawnDataKeys& keys, const PipelineSource& pipeline) {
  const data::PictureSize own{.width = pipeline.sizes.width * pipeline.factor,
                              .height = pipeline.sizes.height * pipeline.factor};
  if (keys.size.empty()) return own;
  require(keys.size.size() == 2, "data", "size must be a width and a height: got ", keys.size.size(), " numbers");
  const data::PictureSize size{.width = keys.size[0], .height = keys.size[1]};
  const int64_t grid = pipeline.factor * pipeline.sizes.side;
  require(data::nearest_multiple(size.width, grid) == size.width &&
              data::nearest_multiple(size.height, grid) == size.height,
          "data", "the sides of size must be multiples of ", grid, " pixels: got ", to_string(size),
          "; the nearest is [", data::nearest_multiple(size.width, grid), ", ",
          data::nearest_multiple(size.height, grid), "]");
  require(pipeline.sizes.classes == 0 || size == own, "data", "size must be that of the model, ", to_string(own),
          ": got ", to_string(size), "; set model.width and model.height to its cells");
  return size;
}

std::string DrawnPictures::id(int64_t index, const data::BucketShape& part) const {
  const std::string of_frames = at(index).id(part.size);
  return fps == 0 ? of_frames : concat(of_frames, "-", part.frames, "-", part.start, "-", print_number(fps));
}

DrawnPictures open_drawn_pictures(const Config& config, const DrawnDataKeys& keys, const PipelineSource& pipeline,
                                  bool reads_captions) {
  const std::string& path = config.data.path;
  const auto shapes = data::parse_builtin_shapes(path);
  const data::PictureSize size = size_of_pictures(keys, pipeline);
  const double share = evaluates(config) ? config.data.held_out : 0;
  const int64_t more = shapes ? data::held_out_shapes(*shapes, share) : 0;
  DrawnPictures drawn = open_files(path, more, config, keys, pipeline, size, reads_captions);
  drawn.buckets = buckets_of(keys, pipeline, size);
  for (int64_t i = 0; i < drawn.files->count(); ++i) {
    const data::CaptionedPicture& file = drawn.files->at(i);
    const bool is_out = shapes ? i >= *shapes : is_held_out(file.name, share);
    (is_out ? drawn.held_out : drawn.training).push_back(i);
    drawn.pictures[static_cast<size_t>(i)].crops = {
        is_out ? size : drawn.buckets[nearest_bucket(drawn.buckets, {file.width, file.height})]};
  }
  require(!drawn.training.empty(), "data", "there must be pictures to train with: got none in ", path,
          "; set data.held_out lower");
  identify(drawn, shapes.has_value(), config, keys);
  return drawn;
}

DrawnPictures open_prior(const Config& config, const DrawnDataKeys& keys, const PipelineSource& pipeline,
                         const DrawnPictures& training, const std::function<bool(const DrawnPicture&)>& is_known) {
  DrawnPictures drawn = open_files(keys.prior, 0, config, keys, pipeline, size_of_pictures(keys, pipeline));
  drawn.buckets = training.buckets;
  for (int64_t i = 0; i < drawn.files->count(); ++i) drawn.training.push_back(i);
  identify(drawn, data::parse_builtin_shapes(keys.prior).has_value(), config, keys);
  if (on_error_of(config.data) == data::OnError::Skip) {
    for (DrawnPicture& one : drawn.pictures) one.crops = drawn.buckets;  // it may be known by any of them
    skip_broken(drawn, is_known);
    for (DrawnPicture& one : drawn.pictures) one.crops.clear();
  }
  const data::BucketPictures shown = data::prior_of_buckets(
      drawn.buckets, data::pictures_of_buckets(drawn.buckets, trained_sizes(training)), trained_sizes(drawn));
  for (size_t bucket = 0; bucket < shown.size(); ++bucket)
    for (const int64_t i : shown[bucket]) {
      const int64_t picture = drawn.training[static_cast<size_t>(i)];
      drawn.pictures[static_cast<size_t>(picture)].crops.push_back(drawn.buckets[bucket]);
    }
  return drawn;
}

void skip_broken(DrawnPictures& drawn, const std::function<bool(const DrawnPicture&)>& is_known) {
  data::SkippedRecords skipped;
  const auto is_broken = [&](int64_t index) {
    if (is_known && is_known(drawn.at(index))) return false;
    try {
      check_decodes(drawn, index);
      return false;
    } catch (const Error& error) {
      skipped.add(error.message());
      return true;
    }
  };
  std::erase_if(drawn.training, is_broken);
  std::erase_if(drawn.held_out, is_broken);
  drawn.notices = skipped.take_notices();
  require(!drawn.training.empty(), "data", "there must be pictures to train with: got none that can be decoded; ",
          join(drawn.notices, "; "));
}

namespace {

/// Returns the bytes of a picture as fp32 [3, height, width].
at::Tensor pixels_from_0_to_255(const data::Picture& picture) {
  const at::Tensor bytes = at::empty({picture.height, picture.width, 3}, at::kByte);
  std::copy(picture.rgb.begin(), picture.rgb.end(), bytes.mutable_data_ptr<uint8_t>());
  return bytes.permute({2, 0, 1}).to(at::kFloat);
}

/// Returns the part of an encoded picture around its middle, resampled; `whole` is set to the size of all of it.
data::Picture decoded_part(const std::string& bytes, const std::string& name, const data::PictureSize& crop,
                           data::PictureSize& whole) {
  data::Crop part{};
  const data::Picture picture = data::decode_picture(bytes, name, [&](int64_t width, int64_t height) {
    whole = {width, height};
    return part = data::middle_crop(whole, crop);
  });
  return data::resample(picture, part.box, crop.width, crop.height);
}

}  // namespace

at::Tensor signed_pixels(const data::Picture& picture) {
  return pixels_from_0_to_255(picture).div(127.5).sub(1).contiguous();
}

at::Tensor pixels_of(const DrawnPictures& drawn, int64_t index, const data::PictureSize& crop) {
  data::PictureSize whole;
  try {
    return signed_pixels(decoded_part(drawn.files->bytes(index), drawn.files->at(index).name, crop, whole));
  } catch (const Error& error) {
    throw Error("data", error.message() + kSkipRemedy);
  }
}

namespace {

/// Decodes and resamples a control picture. Errors: those of control_pixels_of(), without the remedy.
data::Picture decoded_control(const DrawnPictures& drawn, int64_t index, const data::PictureSize& crop) {
  const data::CaptionedPicture& file = drawn.files->at(index);
  const std::string name = drawn.files->control_name(index);
  data::PictureSize whole;
  data::Picture picture = decoded_part(drawn.files->control_bytes(index), name, crop, whole);
  require(whole == data::PictureSize{.width = file.width, .height = file.height}, "data", name,
          " must have the size of its picture, ", file.width, " x ", file.height, ": got ", whole.width, " x ",
          whole.height);
  return picture;
}

}  // namespace

at::Tensor control_pixels_of(const DrawnPictures& drawn, int64_t index, const data::PictureSize& crop) {
  try {
    return pixels_from_0_to_255(decoded_control(drawn, index, crop)).div(255).contiguous();
  } catch (const Error& error) {
    throw Error("data", error.message() + kSkipRemedy);
  }
}

void check_controls(const Config& config, DrawnPictures& drawn) {
  if (data::parse_builtin_shapes(config.data.path)) return;  // each has one, which follows from its number
  const data::CaptionedPictures& files = *drawn.files;
  const bool skips = on_error_of(config.data) == data::OnError::Skip;
  data::SkippedRecords skipped;
  int64_t lacking = 0;
  std::string first;
  const auto is_faulty = [&](int64_t index) {
    try {
      if (!files.has_control(index)) {
        const std::string name = printable(files.control_name(index));
        if (lacking++ == 0) first = name;
        require(!skips, "data", files.at(index).name, " has no control picture, which would be ", name);
        return false;
      }
      if (skips) decoded_control(drawn, index, drawn.at(index).crops.front());
      drawn.pictures[static_cast<size_t>(index)].control = checksum(files.control_bytes(index));
      return false;
    } catch (const Error& error) {
      if (!skips) throw;
      skipped.add(error.message());
      return true;
    }
  };
  std::erase_if(drawn.training, is_faulty);
  std::erase_if(drawn.held_out, is_faulty);
  require(lacking == 0 || skips, "data", "each picture must have a control picture: got ", lacking,
          " without one, the first of which must be ", first, kSkipRemedy);
  const std::vector<std::string> notices = skipped.take_notices();
  drawn.notices.insert(drawn.notices.end(), notices.begin(), notices.end());
  require(!drawn.training.empty(), "data", "there must be pictures to train with: got none with a control picture; ",
          join(notices, "; "));
}

namespace {

/// Returns what `work` makes of the first picture of data.path. With data.on_error = "skip" it is the first one that
/// `work` does not refuse, because the run left out those before it.
template <class Work>
auto of_first(const Config& config, const DrawnPictures& drawn, const Work& work) {
  const int64_t last = on_error_of(config.data) == data::OnError::Skip ? drawn.files->count() - 1 : 0;
  for (int64_t i = 0; i < last; ++i) {
    try {
      return work(i);
    } catch (const Error&) {
      continue;
    }
  }
  return work(last);
}

}  // namespace

at::Tensor first_control(const Config& config, const DrawnDataKeys& keys, const PipelineSource& pipeline) {
  const data::PictureSize size = size_of_pictures(keys, pipeline);
  const DrawnPictures drawn = open_files(config.data.path, 0, config, keys, pipeline, size);
  return of_first(config, drawn, [&](int64_t i) { return control_pixels_of(drawn, i, size); });
}

std::string first_picture(const Config& config, const DrawnDataKeys& keys, const PipelineSource& pipeline) {
  const DrawnPictures drawn = open_files(config.data.path, 0, config, keys, pipeline, size_of_pictures(keys, pipeline));
  return of_first(config, drawn, [&](int64_t i) {
    std::string bytes = drawn.files->bytes(i);
    data::decode_picture(bytes, drawn.files->at(i).name);
    return bytes;
  });
}

}  // namespace colossal::run
