#include "colossal/data/pictures/captioned.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>

#include "colossal/base/error.h"
#include "colossal/base/file_name.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"
#include "colossal/base/number.h"
#include "colossal/base/seed.h"
#include "colossal/data/pictures/captioned_sources.h"
#include "colossal/data/pictures/picture.h"
#include "colossal/data/pictures/shapes.h"
#include "colossal/data/streams/json_lines.h"
#include "colossal/data/videos/clip_encoder.h"
#include "colossal/data/videos/video.h"
#include "colossal/text/unicode.h"

namespace colossal::data {
namespace {

namespace fs = std::filesystem;

constexpr std::array<const char*, 2> kListNames = {"metadata.jsonl", "metadata.csv"};
constexpr const char* kSkipRemedy = "; to train without it set data.on_error = \"skip\"";

uint64_t look_of_shape(uint64_t seed, int64_t index) {
  return training_shape_seed(derive_seed(seed, static_cast<uint64_t>(index)));
}

/// Drawn shapes as files.
class CaptionedShapes final : public CaptionedPictures {
 public:
  CaptionedShapes(CaptionedFindings& found, const CaptionedOptions& options)
      : CaptionedPictures(std::move(found.pictures), {}), options_(options) {}

  std::string bytes(int64_t index) const override {
    const CaptionedPicture& picture = at(index);
    const uint64_t look = look_of_shape(options_.seed, index);
    if (picture.seconds == 0) return encode_png(draw_shape(shape_of(index), look, picture.width, picture.height));
    std::string bytes;
    const auto clip = encode_gif({picture.width, picture.height, options_.fps}, [&](auto piece) { bytes += piece; });
    for (int64_t frame = 0; frame < options_.frames; ++frame)
      clip->add(draw_moving_shape(shape_of(index), look, picture.width, picture.height, frame));
    clip->finish();
    return bytes;
  }
  std::string control_bytes(int64_t index) const override {
    const CaptionedPicture& picture = at(index);
    return encode_png(
        draw_shape_outline(shape_of(index), look_of_shape(options_.seed, index), picture.width, picture.height));
  }
  bool has_control(int64_t) const override { return true; }

 private:
  CaptionedOptions options_;
};

bool is_tar(std::string_view path) { return has_ending(path, ".tar"); }

bool is_packed_tar(std::string_view path) {
  constexpr std::array<const char*, 7> kEndings = {".tar.gz", ".tgz",     ".tar.zst", ".tar.bz2",
                                                   ".tar.xz", ".tar.lz4", ".tar.z"};
  return std::any_of(kEndings.begin(), kEndings.end(), [&](const char* ending) { return has_ending(path, ending); });
}

bool is_caption_file(std::string_view path) { return has_ending(path, ".txt") || has_ending(path, ".caption"); }

/// Returns the paths that a path with `{first..last}` stands for, or nothing if it has no such part. Numbers are as
/// wide as the first one is written.
std::vector<std::string> numbered_paths(const std::string& path) {
  constexpr int64_t kMaxNumbered = 100'000;
  const size_t open = path.find('{'), dots = path.find("..", open), close = path.find('}', dots);
  if (open == std::string::npos || dots == std::string::npos || close == std::string::npos) return {};
  const std::string first = path.substr(open + 1, dots - open - 1), last = path.substr(dots + 2, close - dots - 2);
  const auto from = parse_id(first), to = parse_id(last);
  require(from && to && *from <= *to && *to - *from < kMaxNumbered, "data", "a path with {first..last} needs two ",
          "numbers in this order, of at most ", kMaxNumbered, " files: got ", path);
  std::vector<std::string> paths;
  for (int64_t number = *from; number <= *to; ++number) {
    std::string digits = concat(number);
    digits.insert(0, first.size() - std::min(first.size(), digits.size()), '0');
    paths.push_back(path.substr(0, open) + digits + path.substr(close + 1));
  }
  return paths;
}

/// Returns the path of the list of pictures in a folder.
std::optional<std::string> list_path_in(const std::string& folder) {
  std::optional<std::string> found;
  for (const char* name : kListNames) {
    std::error_code failed;
    const std::string path = folder + "/" + name;
    if (!fs::is_regular_file(path, failed)) continue;
    require(!found, "data", folder, " must have one list of pictures: got ", kListNames[0], " and ", kListNames[1],
            "; remove one");
    found = path;
  }
  return found;
}

/// Returns the tar files that a path names, other than a folder.
std::vector<std::string> named_tars(const std::string& path) {
  std::error_code failed;
  if (fs::exists(path, failed))
    return is_tar(path) || is_packed_tar(path) ? std::vector{path} : std::vector<std::string>();
  return is_tar(path) || is_packed_tar(path) ? numbered_paths(path) : std::vector<std::string>();
}

std::unique_ptr<CaptionedPictures> open_folder(const std::string& path, const CaptionedOptions& options) {
  if (const auto list = list_path_in(path)) return open_captioned_list(*list, options);
  if (has_visible_file(path, [&](const std::string& file) { return has_shown_ending(file, options); }))
    return open_captioned_files(path, options);
  LeftOut left_out;
  const std::vector<std::string> tars = visible_files(path, is_tar), parquet = visible_files(path, is_parquet);
  visible_files(path, [](const std::string& file) { return is_tar(file) || is_parquet(file); }, &left_out);
  require(tars.empty() || parquet.empty(), "data", path, " must have pictures in one form: got ", tars.size(),
          " .tar and ", parquet.size(), " .parquet files; put them into two folders");
  if (!tars.empty()) return open_captioned_tars(path, tars, options);
  if (!parquet.empty()) return open_captioned_parquet(path, parquet, options);
  const auto others = left_out.notice(path);
  throw Error("data", concat("no pictures with captions in ", path, ": there must be .png, .jpg, .jpeg or .webp files ",
                             options.has_videos ? "or videos " : "",
                             "with .txt or .caption files beside them, metadata.jsonl or metadata.csv, .tar or ",
                             ".parquet files", others ? "; " + *others : ""));
}

}  // namespace

void CaptionedFindings::fault(const Error& error) {
  if (options_.on_error == OnError::Skip) return skipped_records_.add(error.message());
  const bool has_remedy = error.message().ends_with(kSkipRemedy);
  throw Error("data", error.message() + (has_remedy ? "" : kSkipRemedy));
}

std::vector<std::string> CaptionedFindings::finish(const std::string& path) {
  const std::vector<std::string> skipped = skipped_records_.take_notices();
  require(!pictures.empty(), "data", "no pictures with captions in ", path, skipped.empty() ? "" : "; ",
          skipped.empty() ? "" : skipped.front());
  notices.insert(notices.begin(), skipped.begin(), skipped.end());
  return std::move(notices);
}

std::string CaptionedPictures::control_name(int64_t index) const { return "the control picture of " + at(index).name; }

std::string CaptionedPictures::control_bytes(int64_t index) const {
  throw Error("data", concat(at(index).name, " has no control picture"));
}

StampedFile CaptionedPictures::stamped_file(int64_t) const { return {}; }

PictureBytes CaptionedPictures::open(int64_t index) const {
  const auto all = std::make_shared<const std::string>(bytes(index));
  return {static_cast<int64_t>(all->size()),
          [all](int64_t begin, int64_t count, char* out) { bytes_of(*all).read(begin, count, out); }};
}

PictureBytes kept_bytes(const std::shared_ptr<const InputFile>& file, int64_t begin, int64_t size) {
  const PictureBytes bytes = bytes_of(*file, begin, size);
  return {size, [file, read = bytes.read](int64_t at, int64_t count, char* out) { read(at, count, out); }};
}

CaptionedPicture measured_picture(const PictureBytes& bytes, std::string name, const std::string& place,
                                  const CaptionedOptions& options) {
  if (options.has_videos && has_video_ending(place)) {
    const auto video = open_video(bytes, place);
    return {.name = std::move(name),
            .width = video->size().width,
            .height = video->size().height,
            .seconds = video->seconds()};
  }
  require(bytes.size <= kMaxPictureFileBytes, "data", place, " has more than ", kMaxPictureFileBytes, " bytes");
  const PictureHeader header = read_picture_header(bytes, place);
  require_decoder(header, place);
  return {.name = std::move(name), .width = header.upright_width(), .height = header.upright_height()};
}

std::string clean_caption(std::string_view text, const std::string& place) {
  constexpr std::string_view kByteOrder = "\xef\xbb\xbf", kSpace = " \t\r\n\f\v";
  require(static_cast<int64_t>(text.size()) <= kMaxCaptionBytes, "data", place, ": a caption of more than ",
          kMaxCaptionBytes, " bytes");
  if (text.starts_with(kByteOrder)) text.remove_prefix(kByteOrder.size());
  require(text::is_utf8(text), "data", place,
          ": the caption is not UTF-8; convert it, for instance with iconv -t UTF-8");
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin));
}

std::string caption_in(const nlohmann::json& object, const CaptionedOptions& options, const std::string& place) {
  const std::string& column = options.text_column;
  auto found = object.find(column.empty() ? "text" : column);
  if (column.empty() && found == object.end()) found = object.find("caption");
  require(found != object.end(), "data", place, ": no caption: it has no ",
          column.empty() ? "text or caption" : printable(column), "; set data.text_columns to what has the caption");
  require(found->is_string(), "data", place, ": the caption must be text: got ", found->type_name());
  const std::string caption = clean_caption(found->get_ref<const std::string&>(), place);
  require(!caption.empty(), "data", place, ": the caption is empty");
  return caption;
}

bool has_picture_ending(std::string_view path) {
  constexpr std::array<const char*, 4> kEndings = {".png", ".jpg", ".jpeg", ".webp"};
  return std::any_of(kEndings.begin(), kEndings.end(), [&](const char* ending) { return has_ending(path, ending); });
}

bool has_shown_ending(std::string_view path, const CaptionedOptions& options) {
  return (has_picture_ending(path) && !has_ending(path, kControlEnding)) ||
         (options.has_videos && has_video_ending(path));
}

std::pair<int64_t, std::string> kohya_folder(const std::string& name) {
  constexpr int64_t kMaxRepeats = 1'000'000;
  const size_t line = name.find('_');
  const auto repeats = line == std::string::npos ? std::nullopt : parse_id(name.substr(0, line));
  const bool is_one = repeats && *repeats >= 1 && *repeats <= kMaxRepeats && line + 1 < name.size();
  return is_one ? std::pair{*repeats, name.substr(line + 1)} : std::pair<int64_t, std::string>{0, ""};
}

std::unique_ptr<CaptionedPictures> open_captioned_shapes(int64_t count, const CaptionedOptions& options) {
  constexpr int64_t kMaxListed = 10'000'000;  // each takes 150 bytes
  require(count <= kMaxListed, "data", "at most ", kMaxListed, " drawn shapes can be listed: got ", count);
  require(options.width >= 1 && options.height >= 1, "data", "drawn shapes need sides of at least 1: got ",
          options.width, " x ", options.height);
  const bool are_clips = options.has_videos && options.frames > 1;
  require(!are_clips || (options.fps >= kLeastGifRate && options.fps <= kMostGifRate), "data",
          "clips of drawn shapes must have at least ", kLeastGifRate, " and at most ", kMostGifRate,
          " frames a second: got ", options.fps, "; set data.fps");
  CaptionedFindings found(options);
  for (int64_t i = 0; i < count; ++i) {
    CaptionedPicture shape{.name = concat("shape ", i), .width = options.width, .height = options.height};
    shape.caption =
        are_clips ? moving_shape_caption(shape_of(i), look_of_shape(options.seed, i)) : shape_caption(shape_of(i));
    if (are_clips) shape.seconds = static_cast<double>(options.frames) / options.fps;
    found.pictures.push_back(std::move(shape));
  }
  return std::make_unique<CaptionedShapes>(found, options);
}

std::unique_ptr<CaptionedPictures> open_captioned(const std::string& path, const CaptionedOptions& options) {
  if (const auto count = parse_builtin_shapes(path)) return open_captioned_shapes(*count, options);
  std::error_code failed;
  if (const std::vector<std::string> tars = named_tars(path); !tars.empty())
    return open_captioned_tars(path, tars, options);
  require(fs::exists(path, failed), "data", "no such file or folder: ", path);
  if (fs::is_directory(path, failed)) return open_folder(path, options);
  if (is_parquet(path)) return open_captioned_parquet(path, {path}, options);
  const std::string name = fs::path(path).filename().string();
  if (std::find(kListNames.begin(), kListNames.end(), name) != kListNames.end())
    return open_captioned_list(path, options);
  throw Error("data", concat("pictures with captions must be a folder, a .tar or .parquet file, metadata.jsonl or ",
                             "metadata.csv: got ", path));
}

bool is_captioned(const std::string& path) {
  std::error_code failed;
  if (parse_builtin_shapes(path) || !named_tars(path).empty()) return true;
  if (!fs::is_directory(path, failed)) {
    const std::string name = fs::path(path).filename().string();
    return fs::exists(path, failed) &&
           (is_parquet(path) || std::find(kListNames.begin(), kListNames.end(), name) != kListNames.end());
  }
  if (list_path_in(path)) return true;
  const bool has_pictures = has_visible_file(path, has_picture_ending);
  if (!has_pictures)
    return has_visible_file(path, [](const std::string& file) { return is_tar(file) || is_parquet(file); });
  return has_visible_file(path, [&](const std::string& file) {
    const fs::path relative = fs::path(file).lexically_relative(path);
    if (is_caption_file(file)) {
      for (const char* ending : {".png", ".jpg", ".jpeg", ".webp"})
        if (fs::exists(fs::path(file).replace_extension(ending), failed)) return true;
    }
    return has_picture_ending(file) && relative.has_parent_path() && kohya_folder(relative.begin()->string()).first > 0;
  });
}

}  // namespace colossal::data
