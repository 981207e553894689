#include <algorithm>
#include <filesystem>
#include <list>
#include <mutex>
#include <optional>

#include "colossal/base/error.h"
#include "colossal/base/input_file.h"
#include "colossal/base/json_file.h"
#include "colossal/data/parquet/column.h"
#include "colossal/data/parquet/footer.h"
#include "colossal/data/pictures/captioned_sources.h"
#include "colossal/data/visible_files.h"

namespace colossal::data {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kByteStrings = 6;  // the type of texts and pictures

/// A page or dictionary of a file, by the file's number.
struct PictureBlock {
  size_t file = 0;
  ParquetBlock block;
};

/// The place of a picture: its block, by number, and its bytes in the unpacked block.
struct BlockPlace {
  size_t block;
  int64_t offset, count;
};

/// A Parquet file and the number of bytes that it had when it was opened.
struct ParquetFileSize {
  std::string path;
  int64_t size;
};

/// Everything that is needed to read the pictures of Parquet files again.
struct ParquetPlaces {
  std::vector<ParquetFileSize> files;
  std::vector<PictureBlock> blocks;
  std::vector<BlockPlace> pictures;
  std::vector<BlockPlace> controls;  // of each picture, if control pictures are read; a count of -1 = it has none
};

/// Returns the result of `work`, whose Errors get the file's name.
template <class Work>
auto of_file(const InputFile& file, const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    throw Error("data", concat(file.path(), ": ", error.message()));
  }
}

/// Pictures that are values of Parquet files. The blocks that were used last are kept unpacked, so that pictures in the
/// order of the file unpack each once.
class CaptionedParquet final : public CaptionedPictures {
 public:
  CaptionedParquet(ParquetPlaces places, std::vector<CaptionedPicture> pictures, std::vector<std::string> notices)
      : CaptionedPictures(std::move(pictures), std::move(notices)), places_(std::move(places)) {}

  std::string bytes(int64_t index) const override { return at_place(places_.pictures.at(static_cast<size_t>(index))); }

  std::string control_name(int64_t index) const override {
    return concat("column ", kControlColumn, " of ", at(index).name);
  }
  bool has_control(int64_t index) const override {
    return !places_.controls.empty() && places_.controls.at(static_cast<size_t>(index)).count >= 0;
  }
  std::string control_bytes(int64_t index) const override {
    return has_control(index) ? at_place(places_.controls[static_cast<size_t>(index)])
                              : CaptionedPictures::control_bytes(index);
  }

 private:
  std::string at_place(const BlockPlace& place) const {
    const PictureBlock& block = places_.blocks[place.block];
    if (block.block.codec == 0) {  // is stored as it is
      std::string bytes(static_cast<size_t>(place.count), '\0');
      opened(block.file)->read(block.block.position + place.offset, place.count, bytes.data());
      return bytes;
    }
    return unpacked(place.block)->substr(static_cast<size_t>(place.offset), static_cast<size_t>(place.count));
  }

  struct Kept {
    size_t block;
    std::shared_ptr<const std::string> bytes;
  };

  std::shared_ptr<const InputFile> opened(size_t number) const {
    const ParquetFileSize& listed = places_.files[number];
    auto file = InputFile::open(listed.path);
    require(file->size() == listed.size, "data", listed.path, " changed since it was opened: it had ", listed.size,
            " bytes, now ", file->size(), "; start again");
    return file;
  }

  std::shared_ptr<const std::string> unpacked(size_t number) const {
    constexpr size_t kMaxKeptBytes = size_t{256} << 20;
    const std::lock_guard lock(mutex_);  // held while unpacking, so that two threads do not unpack the same block
    const auto found = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& kept) { return kept.block == number; });
    if (found != kept_.end()) {
      kept_.splice(kept_.begin(), kept_, found);
      return kept_.front().bytes;
    }
    const PictureBlock& block = places_.blocks[number];
    const auto coming = static_cast<size_t>(block.block.bytes);
    while (!kept_.empty() && kept_bytes_ + coming > kMaxKeptBytes) {
      kept_bytes_ -= kept_.back().bytes->size();
      kept_.pop_back();
    }
    const auto file = opened(block.file);
    const auto bytes =
        of_file(*file, [&] { return std::make_shared<const std::string>(read_block(*file, block.block)); });
    kept_bytes_ += bytes->size();
    kept_.push_front({number, bytes});
    return bytes;
  }

  ParquetPlaces places_;
  mutable std::mutex mutex_;  // guards kept_ and kept_bytes_
  mutable std::list<Kept> kept_;
  mutable size_t kept_bytes_ = 0;
};

/// Returns true for a column of encoded pictures.
bool has_pictures(const ParquetLeaf& leaf) {
  const bool is_member = leaf.path.size() == 2 && leaf.path[1] == "bytes";
  return leaf.type == kByteStrings && !leaf.is_list && !leaf.is_text && (leaf.path.size() == 1 || is_member);
}

/// Returns the column of control pictures; null = there is none.
const ParquetLeaf* control_leaf(const std::vector<ParquetLeaf>& leaves) {
  const auto found = std::find_if(leaves.begin(), leaves.end(), [](const ParquetLeaf& leaf) {
    return has_pictures(leaf) && leaf.path[0] == kControlColumn;
  });
  return found == leaves.end() ? nullptr : &*found;
}

/// Returns the column of encoded pictures. Errors ("data"): there is none, or several and none is called `image`.
const ParquetLeaf& picture_leaf(const std::vector<ParquetLeaf>& leaves) {
  std::vector<const ParquetLeaf*> candidates;
  for (const ParquetLeaf& leaf : leaves)
    if (has_pictures(leaf) && leaf.path[0] != kControlColumn) candidates.push_back(&leaf);
  require(!candidates.empty(), "data", "no column of encoded pictures: bytes, or a structure with the member bytes");
  if (candidates.size() == 1) return *candidates.front();
  for (const ParquetLeaf* leaf : candidates)
    if (leaf->path[0] == "image") return *leaf;
  throw Error("data", concat("several columns may hold pictures, such as ", candidates[0]->name(), " and ",
                             candidates[1]->name(), "; call the one that does image"));
}

/// Returns the column of captions. Errors ("data"): there is none.
const ParquetLeaf& caption_leaf(const std::vector<ParquetLeaf>& leaves, const std::string& wanted) {
  const auto names = wanted.empty() ? std::vector<std::string>{"text", "caption"} : std::vector{wanted};
  for (const std::string& name : names)
    for (const ParquetLeaf& leaf : leaves)
      if (leaf.path.size() == 1 && leaf.path[0] == name && leaf.type == kByteStrings && !leaf.is_list) return leaf;
  throw Error("data", concat("no column of captions: ", wanted.empty() ? "text or caption" : printable(wanted),
                             "; set data.text_columns to the column that has them"));
}

/// Reads the rows of one file.
class ParquetPictures {
 public:
  ParquetPictures(const std::string& path, std::string name, CaptionedFindings& found, ParquetPlaces& places)
      : file_(InputFile::open(path)), name_(std::move(name)), found_(found), places_(places) {
    places_.files.push_back({path, file_->size()});
  }

  void read() {
    const auto footer = of_file(*file_, [&] { return std::make_unique<const ParquetFooter>(*file_); });
    const auto& leaves = footer->leaves();
    const auto picture = of_file(*file_, [&] { return picture_leaf(leaves); });
    const auto caption = of_file(*file_, [&] { return caption_leaf(leaves, found_.options().text_column); });
    const ParquetLeaf* const control = found_.options().has_controls ? control_leaf(leaves) : nullptr;
    for (size_t group = 0; group < footer->groups(); ++group) {
      const int64_t rows = of_file(*file_, [&] { return footer->rows(group); });
      if (rows == 0) continue;
      auto pictures =
          of_file(*file_, [&] { return ParquetColumn(file_, footer->chunk(group, picture.path), picture.levels); });
      auto captions =
          of_file(*file_, [&] { return ParquetColumn(file_, footer->chunk(group, caption.path), caption.levels); });
      std::optional<ParquetColumn> controls;
      if (control)
        of_file(*file_, [&] { controls.emplace(file_, footer->chunk(group, control->path), control->levels); });
      for (int64_t i = 0; i < rows; ++i) {
        const ParquetValue bytes = of_file(*file_, [&] { return pictures.next(); });
        const ParquetValue text = of_file(*file_, [&] { return captions.next(); });
        BlockPlace shown{0, 0, -1};
        if (controls && of_file(*file_, [&] { return controls->next(); }).kind == ParquetValue::Kind::Text)
          shown = place_of(controls->place(), last_control_);
        ++row_;
        found_.attempt([&] {
          add(bytes, text, pictures);
          if (found_.options().has_controls) places_.controls.push_back(shown);
        });
      }
    }
  }

 private:
  void add(const ParquetValue& bytes, const ParquetValue& text, const ParquetColumn& column) {
    const std::string place = concat(file_->path(), ":", row_);
    require(bytes.kind == ParquetValue::Kind::Text, "data", place, ": no picture; store its bytes in the file");
    const std::string caption = clean_caption(text.text, place);
    require(!caption.empty(), "data", place, ": no caption");
    CaptionedPicture picture =
        measured_picture(bytes_of(bytes.text), concat(name_, ":", row_), place, found_.options());
    picture.caption = caption;
    places_.pictures.push_back(place_of(column.place(), last_picture_));
    found_.pictures.push_back(std::move(picture));
  }

  /// Returns the place of a value in the file. `last`: the block of the column's last value, by number.
  BlockPlace place_of(const ParquetPlace& at, std::optional<size_t>& last) {
    if (!last || !(places_.blocks[*last].block == at.block)) {
      last = places_.blocks.size();
      places_.blocks.push_back({places_.files.size() - 1, at.block});
    }
    return {*last, at.offset, at.count};
  }

  std::shared_ptr<const InputFile> file_;
  std::string name_;
  CaptionedFindings& found_;
  ParquetPlaces& places_;
  std::optional<size_t> last_picture_{}, last_control_{};
  int64_t row_ = 0;
};

}  // namespace

std::unique_ptr<CaptionedPictures> open_captioned_parquet(const std::string& path,
                                                          const std::vector<std::string>& files,
                                                          const CaptionedOptions& options) {
  CaptionedFindings found(options);
  ParquetPlaces places;
  std::error_code failed;
  const std::string folder = fs::is_directory(path, failed) ? path : fs::path(path).parent_path().string();
  for (const std::string& file : files)
    found.attempt([&] {
      require_utf8_name(file);
      const std::string name = folder.empty() ? file : fs::path(file).lexically_relative(folder).string();
      ParquetPictures(file, name, found, places).read();
    });
  std::vector<std::string> notices = found.finish(path);
  return std::make_unique<CaptionedParquet>(std::move(places), std::move(found.pictures), std::move(notices));
}

}  // namespace colossal::data
