// Samples of pictures in folders, one folder per class. A picture is read from the disk when its sample is needed.
#pragma once
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "colossal/data/batches.h"
#include "colossal/data/pictures/normalization.h"
#include "colossal/data/streams/record_source.h"

namespace colossal::data {

/// The pictures of a folder and their classes: <folder>/<class>/**.png, .jpg or .jpeg, in upper or lower case. Classes
/// are numbered in the order of their names. Hidden files and folders are ignored. Files outside class folders and
/// files with other endings are not read, but counted.
struct PictureFolder {
  std::string path;
  std::vector<std::string> names;  ///< paths of the pictures within the folder, in sorted order
  std::vector<int64_t> labels;
  std::vector<std::string> classes;
  std::optional<std::string> left_out{};  ///< a line for the log about the files that were counted

  /// Errors ("data"): there is no such folder, it has no picture, or a name is not UTF-8.
  static PictureFolder open(const std::string& path);
  /// Returns true if `path` is a folder with pictures in folders, even of formats that open() does not read (.webp).
  static bool is_one(const std::string& path);
  /// Splits the pictures into a training and a held-out part. A picture is held out with probability `held_out`, drawn
  /// from its name alone.
  std::pair<PictureFolder, PictureFolder> split(double held_out) const;
  /// Numbers the classes by their index in `order`. Errors ("data"): a class is not in `order`.
  void number_as(const std::vector<std::string>& order);
};

/// Returns the index of each of the classes in `order`. Errors ("data"): a class is not in `order`; the message names
/// `path`, which has these classes.
std::vector<int64_t> class_numbers(const std::vector<std::string>& classes, const std::vector<std::string>& order,
                                   const std::string& path);

/// Options of PictureSamples.
struct PictureOptions {
  int64_t width = 0;  ///< the width of a sample in pixels; must be set (at least 1)
  int64_t height = width;
  /// The mean and standard deviation of each channel, of pixels in [0, 1].
  std::vector<double> mean = {0.485, 0.456, 0.406}, deviation = {0.229, 0.224, 0.225};
  /// If true, a sample shows a random part of the picture: `min_crop_area` to all of its area, with 3/4 to 4/3 of its
  /// height as width, mirrored in every second sample on average. If false, it shows `middle` of it.
  bool augment = false;
  /// Share of the largest part in the middle of a picture that has the shape of a sample, which is shown without
  /// `augment`. Classifiers show 7/8 of it
  double middle = 7.0 / 8;
  double min_crop_area = 0.08;         ///< minimum fraction of the picture's area that a random part has
  OnError on_error = OnError::Refuse;  ///< Skip = the next readable picture replaces one that cannot be read
};

/// Samples of pictures. Sample i is a part of picture i, resampled to width x height, as float [3, height, width]. It
/// is normalised by the mean and deviation of the options. The part is a pure function of (seed, epoch, sample).
/// Errors: the constructor throws Error("data", ...) if there are no pictures, a side is below 1, and errors of
///         Normalization. fill() names the file that cannot be read; with OnError::Skip it throws only if no file can
///         be read.
/// Memory: the pictures that are being decoded, at most kMaxPixels each, and the names of all pictures.
class PictureSamples final : public Samples {
 public:
  PictureSamples(PictureFolder folder, PictureOptions options);
  int64_t count() const override { return static_cast<int64_t>(folder_.names.size()); }
  tensor::Batch make(int64_t rows) const override;
  void fill(int64_t index, uint64_t seed, tensor::Batch& batch, int64_t row) const override;
  /// Returns the options and a fingerprint: the number of pictures and a checksum of their names and sizes.
  nlohmann::json traits() const override;
  std::vector<std::string> take_notices() const override;

 private:
  void read(int64_t index, uint64_t seed, float* out) const;
  PictureFolder folder_;
  PictureOptions options_;
  Normalization normalization_;
  std::string fingerprint_;
  mutable std::mutex mutex_;  // guards skipped_records_
  mutable SkippedRecords skipped_records_;
};

}  // namespace colossal::data
