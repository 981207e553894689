// Folders of pictures, one for each class, as samples that are read from the disk when they are wanted.
#pragma once
#include <array>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "colossal/data/batches.h"
#include "colossal/data/passed_over.h"
#include "colossal/data/record_source.h"

namespace colossal::data {

/// The pictures of a folder and the class of each: <folder>/<class>/**.png, .jpg or .jpeg, in either case. Classes are
/// numbered in the order of their names. Hidden files and folders are left out, and so are files of no class and other
/// endings, which are counted.
struct PictureFolder {
  std::string path;
  std::vector<std::string> names;  ///< of the pictures, within the folder, in their order
  std::vector<int64_t> labels;
  std::vector<std::string> classes;
  std::optional<std::string> left_out{};  ///< a line for the log about the files that were counted

  /// Errors ("data"): no such folder, no picture in it, a name that is not UTF-8.
  static PictureFolder open(const std::string& path);
  /// Whether there is a folder of that kind, also one whose pictures open() does not read (.webp).
  static bool is_one(const std::string& path);
  /// Training and held-out part: each picture is held out with that probability, by its name alone.
  std::pair<PictureFolder, PictureFolder> split(double held_out) const;
  /// Numbers the classes as `order` has their names. Errors ("data"): one that is not in it.
  void number_as(const std::vector<std::string>& order);
};

struct PictureOptions {
  int64_t side = 0;                                                                     ///< of a sample
  std::vector<double> mean = {0.485, 0.456, 0.406}, deviation = {0.229, 0.224, 0.225};  ///< of pixels in [0, 1]
  /// The part of the picture that a sample shows is drawn: `least_area` to all of its area, 3/4 to 4/3 as wide as high,
  /// mirrored every second time. Else the middle, a square of 7/8 of the shorter side.
  bool augment = false;
  double least_area = 0.08;
  Faults faults = Faults::Refuse;  ///< Skip: the next picture that can be read takes the place of one that cannot
};

/// Sample i is a part of picture i, resampled to side x side, as float [3, side, side] of mean 0 and variance 1 by the
/// constants given. Which part follows from (seed, epoch, sample) alone.
/// Errors: the constructor throws Error("data", ...) without pictures or with constants that are not three; fill()
/// names the file that cannot be read, with Faults::Skip only where none can.
/// Memory: the pictures being decoded, at most kMostPixels each; names of all.
class PictureSamples final : public Samples {
 public:
  PictureSamples(PictureFolder folder, PictureOptions options);
  int64_t count() const override { return static_cast<int64_t>(folder_.names.size()); }
  tensor::Batch make(int64_t rows) const override;
  void fill(int64_t index, uint64_t seed, tensor::Batch& batch, int64_t row) const override;
  /// Number of pictures and a checksum of their names and sizes.
  nlohmann::json traits() const override;
  std::vector<std::string> take_notices() const override;

 private:
  void read(int64_t index, uint64_t seed, float* out) const;
  PictureFolder folder_;
  PictureOptions options_;
  std::string fingerprint_;
  std::array<std::array<float, 256>, 3> values_{};  // of a channel's bytes, in a sample
  mutable std::mutex mutex_;                        // of what threads passed over
  mutable PassedOver passed_over_;
};

}  // namespace colossal::data
