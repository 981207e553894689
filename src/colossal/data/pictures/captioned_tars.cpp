#include <array>
#include <filesystem>
#include <optional>
#include <unordered_map>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/file_name.h"
#include "colossal/base/input_file.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"
#include "colossal/data/pictures/captioned_sources.h"
#include "colossal/data/pictures/tar.h"
#include "colossal/data/visible_files.h"

namespace colossal::data {
namespace {

namespace fs = std::filesystem;

/// The endings of captions, the preferred first.
constexpr std::array<const char*, 3> kCaptionEndings = {"txt", "caption", "json"};

/// The members of one name in a tar.
struct TarSample {
  std::string name{};  // name of the picture, or of the first member if the sample has no picture
  std::optional<TarMember> picture{}, control{};
  std::array<std::optional<TarMember>, kCaptionEndings.size()> captions{};
  bool has_other_picture = false;
};

/// The samples of a tar in the order of their first members (webdataset's rule of names).
class TarSamples {
 public:
  explicit TarSamples(const CaptionedOptions& options) : options_(options) {}

  void add(const TarMember& member) {
    const size_t slash = member.name.rfind('/'), start = slash == std::string::npos ? 0 : slash + 1;
    const size_t point = member.name.find('.', start);
    if (point == start || point == std::string::npos || member.name.find('\0') != std::string::npos) return;
    const auto [place, is_new] = places_.try_emplace(member.name.substr(0, point), samples_.size());
    if (is_new) samples_.push_back({.name = member.name});
    TarSample& sample = samples_[place->second];
    const std::string ending = lower_case(member.name.substr(point + 1));
    if (has_shown_ending("." + ending, options_) && ending.find('.') == std::string::npos) {
      sample.has_other_picture = sample.picture.has_value();
      sample.name = member.name;
      sample.picture = member;
    }
    if ("." + ending == kControlEnding) sample.control = member;
    for (size_t i = 0; i < kCaptionEndings.size(); ++i)
      if (ending == kCaptionEndings[i]) sample.captions[i] = member;
  }
  const std::vector<TarSample>& all() const { return samples_; }

 private:
  const CaptionedOptions& options_;
  std::unordered_map<std::string, size_t> places_;
  std::vector<TarSample> samples_;
};

/// The place of a picture and of its control picture: its tar, by number, and their bytes in it.
struct TarPlace {
  size_t tar;
  int64_t offset, size;
  int64_t control_offset = 0, control_size = -1;  // -1 = there is none
};

/// A tar and the number of bytes that it had when it was listed.
struct ListedTar {
  std::string path;
  int64_t size;
};

/// Pictures that are members of tar files.
class CaptionedTars final : public CaptionedPictures {
 public:
  CaptionedTars(std::vector<ListedTar> tars, std::vector<TarPlace> places, std::vector<CaptionedPicture> pictures,
                std::vector<std::string> notices)
      : CaptionedPictures(std::move(pictures), std::move(notices)),
        tars_(std::move(tars)),
        places_(std::move(places)) {}

  std::string bytes(int64_t index) const override { return content(open(index)); }

  PictureBytes open(int64_t index) const override {
    const TarPlace& place = place_of(index);
    return kept_bytes(opened(place.tar), place.offset, place.size);
  }

  std::string control_name(int64_t index) const override {
    const std::string& name = at(index).name;  // whose stem ends at the first point after the last slash
    return name.substr(0, name.find('.', name.rfind('/'))) + kControlEnding;
  }
  bool has_control(int64_t index) const override { return place_of(index).control_size >= 0; }
  std::string control_bytes(int64_t index) const override {
    const TarPlace& place = place_of(index);
    if (place.control_size < 0) return CaptionedPictures::control_bytes(index);
    require(place.control_size <= kMaxPictureFileBytes, "data", control_name(index), " has more than ",
            kMaxPictureFileBytes, " bytes");
    return content(kept_bytes(opened(place.tar), place.control_offset, place.control_size));
  }
  StampedFile stamped_file(int64_t index) const override {
    const TarPlace& place = place_of(index);
    std::error_code failed;
    const std::string path = fs::absolute(tars_[place.tar].path, failed).lexically_normal().string();
    return {concat(path, "/", place.offset), file_stamp(path)};
  }

 private:
  static std::string content(const PictureBytes& member) {
    std::string bytes(static_cast<size_t>(member.size), '\0');
    member.read(0, member.size, bytes.data());
    return bytes;
  }
  const TarPlace& place_of(int64_t index) const { return places_.at(static_cast<size_t>(index)); }
  std::shared_ptr<const InputFile> opened(size_t number) const {
    const ListedTar& tar = tars_[number];
    auto file = InputFile::open(tar.path);  // not kept open, because there may be thousands
    require(file->size() == tar.size, "data", tar.path, " changed since it was opened: it had ", tar.size,
            " bytes, now ", file->size(), "; start again");
    return file;
  }

  std::vector<ListedTar> tars_;
  std::vector<TarPlace> places_;
};

/// Returns the caption of a sample. Errors ("data"), beginning with `place`: there is none.
std::string caption_of_sample(const TarSample& sample, const InputFile& tar, const std::string& place,
                              const CaptionedOptions& options) {
  for (size_t i = 0; i < kCaptionEndings.size(); ++i) {
    if (!sample.captions[i]) continue;
    const TarMember& member = *sample.captions[i];
    require(member.size <= kMaxCaptionBytes * 8, "data", place, ": its ", kCaptionEndings[i], " has ", member.size,
            " bytes, which is no caption");
    std::string text(static_cast<size_t>(member.size), '\0');
    tar.read(member.offset, member.size, text.data());
    const bool is_json = i + 1 == kCaptionEndings.size();
    std::string caption =
        is_json ? caption_in(parse_json_object(text, place, "data"), options, place) : clean_caption(text, place);
    if (!caption.empty()) return caption;
  }
  throw Error("data",
              concat(place, " has no caption; add a member of its name with the ending .txt, .caption or ", ".json"));
}

/// Returns the picture of a sample, of which `name` is the name. Errors ("data"), beginning with `place`.
CaptionedPicture picture_of_sample(const TarSample& sample, const InputFile& tar, std::string name,
                                   const std::string& place, const CaptionedOptions& options) {
  require(!sample.has_other_picture, "data", place, " is one of several pictures of its name; give each its own");
  std::string caption = options.reads_captions ? caption_of_sample(sample, tar, place, options) : "";
  CaptionedPicture picture =
      measured_picture(bytes_of(tar, sample.picture->offset, sample.picture->size), std::move(name), place, options);
  picture.caption = std::move(caption);
  return picture;
}

}  // namespace

std::unique_ptr<CaptionedPictures> open_captioned_tars(const std::string& path, const std::vector<std::string>& tars,
                                                       const CaptionedOptions& options) {
  require(reads_tars(), "data", path, " is of tar files, which this build does not read; install libarchive-dev and ",
          "build again, or unpack them");
  CaptionedFindings found(options);
  std::vector<ListedTar> listed;
  std::vector<TarPlace> places;
  std::error_code failed;
  const std::string folder = fs::is_directory(path, failed) ? path : fs::path(path).parent_path().string();
  for (const std::string& tar : tars) {
    std::shared_ptr<const InputFile> file;
    TarSamples samples(options);
    found.attempt([&] {
      require_utf8_name(tar);
      file = InputFile::open(tar);
      list_tar(*file, [&](const TarMember& member) { samples.add(member); });
    });
    if (!file) continue;
    const std::string name = folder.empty() ? tar : fs::path(tar).lexically_relative(folder).string();
    int64_t without_picture = 0;
    for (const TarSample& sample : samples.all()) {
      if (!sample.picture) ++without_picture;
      if (!sample.picture) continue;
      found.attempt([&] {
        const std::string member = printable(sample.name);
        found.pictures.push_back(
            picture_of_sample(sample, *file, name + "/" + member, tar + "/" + member, found.options()));
        places.push_back({listed.size(), sample.picture->offset, sample.picture->size});
        if (sample.control) {
          places.back().control_offset = sample.control->offset;
          places.back().control_size = sample.control->size;
        }
      });
    }
    listed.push_back({tar, file->size()});
    if (without_picture > 0)
      found.notices.push_back(concat("in ", tar, " ", without_picture, " samples have no picture"));
  }
  std::vector<std::string> notices = found.finish(path);
  return std::make_unique<CaptionedTars>(std::move(listed), std::move(places), std::move(found.pictures),
                                         std::move(notices));
}

}  // namespace colossal::data
