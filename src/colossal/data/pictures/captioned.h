// Pictures and videos with captions: files with texts beside them, lists of files, tar files, Parquet files or drawn
// shapes.
//
//   const auto pictures = data::open_captioned("pictures", {.on_error = data::OnError::Skip});
//   for (const std::string& notice : pictures->take_notices()) std::cout << notice << "\n";
//   std::cout << pictures->count() << " pictures, the first of " << pictures->at(0).caption;
//   const data::Picture first = data::decode_picture(pictures->bytes(0), pictures->at(0).name);
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "colossal/data/pictures/picture_header.h"
#include "colossal/data/streams/record_source.h"

namespace colossal::data {

/// A picture or a video, except its pixels.
struct CaptionedPicture {
  /// Names the picture in messages: the path of a file within the folder, `file.tar/member`, `file.parquet:row` or
  /// `shape 17`.
  std::string name{};
  int64_t width = 0, height = 0;  ///< pixels, upright (EXIF), as the headers of the file say
  std::string caption{};          ///< UTF-8, without white space around it; empty = captions are not read
  int64_t repeats = 1;            ///< how often an epoch shows it (kohya's folders)
  double seconds = 0;             ///< length of a video; 0 = a picture
};

/// Options of open_captioned().
struct CaptionedOptions {
  /// Skip = pictures that cannot be read or have no caption, damaged lines, and the rest of damaged tar and Parquet
  /// files are left out, with notices.
  OnError on_error = OnError::Refuse;
  std::string text_column{};  ///< the column or member that has the caption; empty = `text` or else `caption`
  int64_t width = 512;        ///< the size of drawn shapes; other pictures have their own
  int64_t height = width;     ///< as `width`
  uint64_t seed = 0;          ///< the drawn shapes follow from it
  /// False = captions are not read, so files, lists and tars may lack them. Parquet files have their column anyway
  bool reads_captions = true;
  bool has_videos = false;    ///< true = videos (has_video_ending()) are read as well as pictures
  int64_t frames = 1;         ///< above 1, with has_videos: drawn shapes move in clips of so many frames
  double fps = 24;            ///< the rate of those clips, 0.01 to 50
  bool has_controls = false;  ///< true = the control pictures are found, too, for a ControlNet
};

/// The state of a file, by which a program knows it again without reading it.
struct StampedFile {
  std::string path{};   ///< absolute, of a member of a tar with its place in it
  std::string stamp{};  ///< file_stamp(); empty = unknown, or changed just now
};

/// A list of pictures with captions, whose files are read when they are needed.
/// Memory: names, sizes and captions of all pictures, and the pictures that bytes() returns. For compressed Parquet
///         files also the pages that were used last, at most 256 MiB or one page.
/// Thread safety: const members may be called from several threads.
class CaptionedPictures {
 public:
  virtual ~CaptionedPictures() = default;
  CaptionedPictures(const CaptionedPictures&) = delete;
  CaptionedPictures& operator=(const CaptionedPictures&) = delete;

  /// Returns the number of pictures, at least 1.
  int64_t count() const { return static_cast<int64_t>(pictures_.size()); }
  const CaptionedPicture& at(int64_t index) const { return pictures_.at(static_cast<size_t>(index)); }
  /// Returns the encoded bytes of a picture, for decode_picture(), or of a video: those of its file or member, a PNG of
  /// a drawn shape or a GIF of a drawn clip, which keeps each pixel. Errors ("file", "data"), with the file's name: it
  /// cannot be read, or was changed since it was opened.
  virtual std::string bytes(int64_t index) const = 0;
  /// Returns the same bytes to be read in pieces, for open_video(). The result keeps open what it reads. Errors: as
  /// bytes().
  virtual PictureBytes open(int64_t index) const;
  /// Returns the name of the control picture of a picture, or the one that it should have, for messages.
  virtual std::string control_name(int64_t index) const;
  /// Returns true if that picture has a control picture, of which nothing is read. Needs
  /// CaptionedOptions::has_controls.
  virtual bool has_control(int64_t) const { return false; }
  /// Returns the encoded bytes of the control picture of a picture, for decode_picture(): those of its file, member or
  /// column, or a PNG of the outline of a drawn shape (draw_shape_outline()). Errors ("data"): there is none; those of
  /// bytes().
  virtual std::string control_bytes(int64_t index) const;
  /// Returns the file that holds the picture, and its file_stamp(). Both are empty if they are not known, as of Parquet
  /// files and drawn shapes.
  virtual StampedFile stamped_file(int64_t index) const;
  /// Returns lines for the log, once: what was skipped (as limited by SkippedRecords), which files are not read, and
  /// kohya's folders with their repeats.
  std::vector<std::string> take_notices() { return std::exchange(notices_, {}); }

 protected:
  CaptionedPictures(std::vector<CaptionedPicture> pictures, std::vector<std::string> notices)
      : pictures_(std::move(pictures)), notices_(std::move(notices)) {}

 private:
  std::vector<CaptionedPicture> pictures_;
  std::vector<std::string> notices_;
};

/// Opens the pictures at a path. What is there decides the form:
///
/// - `builtin-shapes`, `builtin-shapes:N`: 10,000 or N drawn shapes (draw_shape()) with captions such as "a star", or
///   clips of them (draw_moving_shape()) with captions such as "a star moves left". Each is a function of `seed` and
///   its number, and the first frame of a clip is the picture of that number.
/// - A folder with `metadata.jsonl` or `metadata.csv` (RFC 4180, with a line of names), or such a file itself: a line
///   has the path of a picture in the folder, `file_name`, and its caption. Other pictures are not read.
/// - A folder with pictures (.png, .jpg, .jpeg, .webp) in any depth, in the order of their paths. The caption of
///   `x.png` is `x.txt` or `x.caption`. Files `x.control.png` are control pictures, which are not shown. In a folder
///   `10_name` directly in the path (kohya's form) a picture has 10 repeats and, if there is no text file, the caption
///   `name`.
/// - A .tar file, several as in `train-{000..127}.tar`, or a folder of them (webdataset). Members whose names agree up
///   to the first point after the last slash are a sample: one picture, and `x.txt`, `x.caption` or `x.json` with a
///   member for the caption, in this order of preference. Compressed tars are refused.
/// - A .parquet file or a folder of them, with a column of encoded pictures (bytes, or a structure with the member
///   `bytes`, as the package datasets writes it) and a column of captions. If there are several of pictures besides
///   `conditioning_image`, that with the name `image` is used. There are no videos in Parquet files.
///
/// With has_controls a picture may have a control picture: the file or member `x.control.png` beside `x.png`, the path
/// `conditioning_image_file_name` in a line of a list (else the file beside it), or the Parquet column
/// `conditioning_image`. Both names are those of the package datasets and of diffusers' training script.
///
/// With has_videos the same holds for videos: `x.mp4` has its caption in `x.txt`.
///
/// Errors ("data", "file"), with the name of the file: none of these forms is at the path, or it has no pictures. With
/// OnError::Refuse also: a picture whose headers cannot be read (read_picture_header()), of more than 256 MiB, or of
/// WebP in a build without libwebp; a video that open_video() refuses; a missing caption, one that is not UTF-8, or of
/// more than 1 MiB; two captions that differ; a damaged line; a file name that occurs twice in the list, is absolute,
/// has `..` or a link to a folder; a damaged tar or Parquet file.
/// Cost: reads the headers of each picture and all captions. A Parquet file is unpacked once.
std::unique_ptr<CaptionedPictures> open_captioned(const std::string& path, const CaptionedOptions& options = {});

/// Returns true if open_captioned() would find one of its forms at a path: pictures with captions or a list, tar or
/// Parquet files, or drawn shapes. Files are not read. Returns false for a folder with pictures of which none has a
/// caption, such as one with a folder for each class. Cost: lists the folder.
bool is_captioned(const std::string& path);

}  // namespace colossal::data
