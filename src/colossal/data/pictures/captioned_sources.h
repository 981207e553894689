// The forms of pictures with captions, one function each, and what they share. open_captioned() chooses among them.
#pragma once
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/data/pictures/captioned.h"
#include "colossal/data/pictures/picture_header.h"

namespace colossal::data {

/// The pictures and notices that opening a source finds.
class CaptionedFindings {
 public:
  explicit CaptionedFindings(const CaptionedOptions& options) : options_(options) {}

  std::vector<CaptionedPicture> pictures{};
  std::vector<std::string> notices{};

  const CaptionedOptions& options() const { return options_; }
  /// Runs `work`. With OnError::Refuse its Errors get the remedy and pass; with OnError::Skip they become notices.
  template <class Work>
  void attempt(const Work& work) {
    try {
      work();
    } catch (const Error& error) {
      fault(error);
    }
  }
  /// Ends the opening: returns all notices. Errors ("data"): there are no pictures.
  std::vector<std::string> finish(const std::string& path);

 private:
  void fault(const Error& error);
  const CaptionedOptions& options_;
  SkippedRecords skipped_records_;
};

constexpr int64_t kMaxPictureFileBytes = int64_t{256} << 20;  ///< maximum bytes of a picture's file
constexpr int64_t kMaxCaptionBytes = int64_t{1} << 20;        ///< maximum bytes of a caption

/// Returns a picture or, by the ending of `place`, a video without a caption, with its size from the headers. `place`
/// names it in messages.
/// Errors ("data"): too many bytes of a picture, and errors of read_picture_header(), require_decoder() and
/// open_video().
CaptionedPicture measured_picture(const PictureBytes& bytes, std::string name, const std::string& place,
                                  const CaptionedOptions& options);

/// Returns the `size` bytes of a file from `begin`, which keep the file open.
PictureBytes kept_bytes(const std::shared_ptr<const InputFile>& file, int64_t begin, int64_t size);

/// Returns a caption without the white space and byte order mark around it; "" = there is none.
/// Errors ("data"), beginning with `place`: it is not UTF-8 or has more than kMaxCaptionBytes.
std::string clean_caption(std::string_view text, const std::string& place);

/// Returns the caption in an object: the member `text_column` of the options or, if that is empty, `text` or `caption`.
/// Errors ("data"), beginning with `place`: there is none, or it is no text; the same as clean_caption().
std::string caption_in(const nlohmann::json& object, const CaptionedOptions& options, const std::string& place);

/// Ending of the file or member beside a picture that has its control picture, and the Parquet column of control
/// pictures. A list has the path under the column's name with "_file_name".
constexpr const char *kControlEnding = ".control.png", *kControlColumn = "conditioning_image",
                     *kControlPath = "conditioning_image_file_name";

/// Returns true if a name ends as pictures do: .png, .jpg, .jpeg or .webp, in any case.
bool has_picture_ending(std::string_view path);

/// Returns true if a name ends as what is read: as pictures do, but control pictures, or, with options.has_videos, as
/// videos do.
bool has_shown_ending(std::string_view path, const CaptionedOptions& options);

/// Returns the number of pictures that kohya's form of a folder's name asks for, and the name: `10_cat` gives 10 and
/// cat. The number is 0 if the name has another form.
std::pair<int64_t, std::string> kohya_folder(const std::string& name);

std::unique_ptr<CaptionedPictures> open_captioned_files(const std::string& folder, const CaptionedOptions& options);
/// `list` is the path of metadata.jsonl or metadata.csv.
std::unique_ptr<CaptionedPictures> open_captioned_list(const std::string& list, const CaptionedOptions& options);
/// `path` is what the user gave, for messages and names.
std::unique_ptr<CaptionedPictures> open_captioned_tars(const std::string& path, const std::vector<std::string>& tars,
                                                       const CaptionedOptions& options);
std::unique_ptr<CaptionedPictures> open_captioned_parquet(const std::string& path,
                                                          const std::vector<std::string>& files,
                                                          const CaptionedOptions& options);
std::unique_ptr<CaptionedPictures> open_captioned_shapes(int64_t count, const CaptionedOptions& options);

}  // namespace colossal::data
