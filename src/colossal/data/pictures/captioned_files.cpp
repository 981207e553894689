#include <algorithm>
#include <filesystem>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/file_name.h"
#include "colossal/base/input_file.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"
#include "colossal/data/pictures/captioned_sources.h"
#include "colossal/data/streams/json_lines.h"
#include "colossal/data/streams/record_lines.h"
#include "colossal/data/texts/csv.h"
#include "colossal/data/visible_files.h"

namespace colossal::data {
namespace {

namespace fs = std::filesystem;

/// Pictures that are files in a folder.
class CaptionedFiles final : public CaptionedPictures {
 public:
  /// `controls`: the path of the control picture of each picture in the folder; an empty one, or none at all = the file
  /// beside it.
  CaptionedFiles(std::string folder, std::vector<CaptionedPicture> pictures, std::vector<std::string> controls,
                 std::vector<std::string> notices)
      : CaptionedPictures(std::move(pictures), std::move(notices)),
        folder_(std::move(folder)),
        controls_(std::move(controls)) {}

  std::string bytes(int64_t index) const override { return content_of(folder_ + "/" + at(index).name); }
  PictureBytes open(int64_t index) const override {
    const auto file = InputFile::open(folder_ + "/" + at(index).name);
    return kept_bytes(file, 0, file->size());
  }
  StampedFile stamped_file(int64_t index) const override {
    std::error_code failed;
    const std::string path = fs::absolute(folder_ + "/" + at(index).name, failed).lexically_normal().string();
    return {path, file_stamp(path)};
  }
  std::string control_name(int64_t index) const override { return control_path(index); }
  bool has_control(int64_t index) const override {
    std::error_code failed;
    return fs::is_regular_file(control_path(index), failed);
  }
  std::string control_bytes(int64_t index) const override { return content_of(control_path(index)); }

 private:
  static std::string content_of(const std::string& path) {
    const auto file = InputFile::open(path);
    require(file->size() <= kMaxPictureFileBytes, "data", path, " has more than ", kMaxPictureFileBytes, " bytes");
    return file->content();
  }
  std::string control_path(int64_t index) const {
    const auto own = static_cast<size_t>(index);
    if (own < controls_.size() && !controls_[own].empty()) return folder_ + "/" + controls_[own];
    return (fs::path(folder_) / at(index).name).replace_extension().string() + kControlEnding;
  }

  std::string folder_;
  std::vector<std::string> controls_;
};

CaptionedPicture measured_file(const std::string& folder, const std::string& name, const CaptionedOptions& options) {
  const auto file = InputFile::open(folder + "/" + name);
  return measured_picture(bytes_of(*file), name, file->path(), options);
}

/// Returns a path without the ending of the file's name.
std::string stem_path(const std::string& path) { return fs::path(path).replace_extension().string(); }

/// The text files beside pictures, by their paths without ending.
class CaptionFiles {
 public:
  void add(const std::string& path) { files_[stem_path(path)].push_back(path); }

  /// Returns the caption of a picture, or "" if it has no file or an empty one.
  std::string of_picture(const std::string& picture) {
    const auto found = files_.find(stem_path(picture));
    if (found == files_.end()) return "";
    used_.insert(found->first);
    std::string caption;
    for (const std::string& path : found->second) {
      const std::string text = clean_caption(InputFile::open(path)->start(kMaxCaptionBytes + 1), path);
      require(caption.empty() || text.empty() || text == caption, "data", picture,
              " has two captions that differ: ", found->second[0], " and ", path, "; remove one");
      if (!text.empty()) caption = text;
    }
    return caption;
  }

  /// Adds a line about the files that belong to no picture.
  void note_unused(const std::string& folder, std::vector<std::string>& notices) const {
    const size_t count = files_.size() - used_.size();
    if (count > 0) notices.push_back(concat("in ", folder, " ", count, " texts have no picture of their name"));
  }

 private:
  std::map<std::string, std::vector<std::string>> files_;
  std::unordered_set<std::string> used_;
};

/// Paths in a folder that come from a list. The folders that hold no links are remembered.
class ListedNames {
 public:
  explicit ListedNames(std::string folder) : folder_(std::move(folder)) {}

  /// Returns the name of a listed picture in its normal form. Errors ("data"), beginning with `place`: the path leaves
  /// the folder, goes through a link to a folder, or was listed before.
  std::string take(const std::string& listed, const std::string& place) {
    std::string name = normal(listed, "file_name", place);
    require(seen_.insert(name).second, "data", place, ": ", printable(name), " is listed twice; remove one line");
    return name;
  }
  /// Does the same for a control picture, which several pictures may have.
  std::string take_control(const std::string& listed, const std::string& place) {
    std::string name = normal(listed, kControlPath, place);
    controls_.insert(name);
    return name;
  }
  bool has(const std::string& name) const { return seen_.contains(name) || controls_.contains(name); }

 private:
  std::string normal(const std::string& listed, const char* key, const std::string& place) {
    const fs::path path(listed);
    const bool stays = !path.empty() && path.is_relative() && path.has_filename() &&
                       listed.find('\0') == std::string::npos &&
                       std::find(path.begin(), path.end(), "..") == path.end();
    require(stays, "data", place, ": ", key, " must be a path within the folder of the list: got ", printable(listed));
    const fs::path normal = path.lexically_normal();
    require(!passes_link(normal.parent_path()), "data", place, ": ", key,
            " must not go through a link to a folder: got ", printable(listed));
    const std::string name = normal.string();
    require_utf8_name(name);
    return name;
  }
  bool passes_link(const fs::path& parent) {
    if (parent.empty()) return false;
    const auto known = links_.find(parent.string());
    if (known != links_.end()) return known->second;
    std::error_code failed;
    const bool found = fs::is_symlink(fs::path(folder_) / parent, failed) || passes_link(parent.parent_path());
    links_[parent.string()] = found;
    return found;
  }

  std::string folder_;
  std::unordered_set<std::string> seen_, controls_;
  std::unordered_map<std::string, bool> links_;
};

/// The pictures that a list has, and the paths of their control pictures; "" = the line names none.
struct ListedPictures {
  ListedNames names;
  CaptionedFindings found;
  std::vector<std::string> controls{};
};

/// Adds the picture in a line of the list.
void add_listed(const nlohmann::json& line, const std::string& folder, const std::string& place,
                ListedPictures& pictures) {
  CaptionedFindings& found = pictures.found;
  const auto listed = line.find("file_name");
  require(listed != line.end() && listed->is_string(), "data", place, ": no file_name, the path of a picture");
  const std::string name = pictures.names.take(listed->get<std::string>(), place);
  std::string control;
  if (const auto named = line.find(kControlPath);
      found.options().has_controls && named != line.end() && !named->is_null()) {
    require(named->is_string(), "data", place, ": ", kControlPath, " must be the path of a control picture: got ",
            named->type_name());
    if (*named != "") control = pictures.names.take_control(named->get<std::string>(), place);
  }
  std::string caption = found.options().reads_captions ? caption_in(line, found.options(), place) : "";
  CaptionedPicture picture = measured_file(folder, name, found.options());
  picture.caption = std::move(caption);
  found.pictures.push_back(std::move(picture));
  pictures.controls.push_back(std::move(control));
}

void read_json_list(const std::string& list, const std::string& folder, ListedPictures& pictures) {
  LineReader lines(list, kMaxCaptionBytes * 8);
  int64_t number = 0;
  for (std::string line; lines.next(line);) {
    ++number;
    pictures.found.attempt([&] {
      require(!lines.is_cut(), "data", list, ":", number, ": the line is too long");
      if (is_blank(line)) return;
      add_listed(parse_json_line(line, list, number), folder, concat(list, ":", number), pictures);
    });
  }
}

void read_csv_list(const std::string& list, const std::string& folder, ListedPictures& pictures) {
  constexpr int64_t kMaxListBytes = int64_t{1} << 30;
  const std::string text = read_unpacked(list, kMaxListBytes);
  CsvReader reader(text, list);
  std::vector<std::string> columns, fields;
  const bool has_columns = reader.next(columns);
  require(has_columns && std::find(columns.begin(), columns.end(), "file_name") != columns.end(), "data", list,
          ":1: the first line must name the columns, among them file_name");
  for (bool is_left = true; is_left;)
    pictures.found.attempt([&] {
      is_left = reader.next(fields);
      if (!is_left) return;
      const std::string place = concat(list, ":", reader.line());
      require(fields.size() == columns.size(), "data", place, ": ", columns.size(), " fields are needed: got ",
              fields.size());
      nlohmann::json line = nlohmann::json::object();
      for (size_t i = 0; i < columns.size(); ++i) line[columns[i]] = std::move(fields[i]);
      add_listed(line, folder, place, pictures);
    });
}

/// Returns the pictures that were found, each a file in the folder under its name.
std::unique_ptr<CaptionedPictures> picture_files(const std::string& folder, CaptionedFindings& found,
                                                 std::vector<std::string> controls = {}) {
  std::vector<std::string> notices = found.finish(folder);
  return std::make_unique<CaptionedFiles>(folder, std::move(found.pictures), std::move(controls), std::move(notices));
}

}  // namespace

std::unique_ptr<CaptionedPictures> open_captioned_files(const std::string& folder, const CaptionedOptions& options) {
  CaptionedFindings found(options);
  CaptionFiles captions;
  LeftOut left_out;
  const auto is_caption = [](const std::string& path) {
    return has_ending(path, ".txt") || has_ending(path, ".caption");
  };
  std::vector<std::string> pictures;
  const auto is_wanted = [&](const std::string& path) {
    return has_shown_ending(path, options) || is_caption(path) || has_ending(path, kControlEnding);
  };
  for (const std::string& path : visible_files(folder, is_wanted, &left_out)) {
    if (is_caption(path) && options.reads_captions) captions.add(path);
    if (has_shown_ending(path, options)) pictures.push_back(path);
  }
  std::map<std::string, int64_t> repeated;  // number of pictures of each of kohya's folders
  for (const std::string& path : pictures)
    found.attempt([&] {
      const fs::path name = fs::path(path).lexically_relative(folder);
      const auto [repeats, subject] = kohya_folder(name.has_parent_path() ? name.begin()->string() : "");
      std::string caption = captions.of_picture(path);
      if (caption.empty()) caption = subject;
      require(!caption.empty() || !options.reads_captions, "data", path,
              " has no caption; write one into a file beside it with the ending .txt ", "or .caption");
      CaptionedPicture picture = measured_file(folder, name.string(), options);
      picture.caption = std::move(caption);
      picture.repeats = std::max<int64_t>(1, repeats);
      found.pictures.push_back(std::move(picture));
      if (repeats > 0) ++repeated[name.begin()->string()];
    });
  for (const auto& [name, count] : repeated)
    found.notices.push_back(concat(folder, "/", printable(name), ": an epoch shows each of ", count, " pictures ",
                                   kohya_folder(name).first, " times"));
  captions.note_unused(folder, found.notices);
  if (const auto notice = left_out.notice(folder)) found.notices.push_back(*notice);
  return picture_files(folder, found);
}

std::unique_ptr<CaptionedPictures> open_captioned_list(const std::string& list, const CaptionedOptions& options) {
  const std::string parent = fs::path(list).parent_path().string(), folder = parent.empty() ? "." : parent;
  ListedPictures pictures{ListedNames(folder), CaptionedFindings(options)};
  CaptionedFindings& found = pictures.found;
  if (has_ending(list, ".csv"))
    read_csv_list(list, folder, pictures);
  else
    read_json_list(list, folder, pictures);
  int64_t unlisted = 0;
  const auto is_shown = [&](const std::string& path) { return has_shown_ending(path, options); };
  for (const std::string& path : visible_files(folder, is_shown))
    unlisted += !pictures.names.has(fs::path(path).lexically_relative(folder).string());
  if (unlisted > 0) found.notices.push_back(concat("in ", folder, " ", unlisted, " pictures are not in ", list));
  return picture_files(folder, found, std::move(pictures.controls));
}

}  // namespace colossal::data
