// Aspect-ratio buckets: the few sizes in which pictures of many shapes are trained.
//
//   const auto buckets = data::bucket_sizes({.size = {512, 512}, .multiple = 64, .grid = 8});   // 256x832 to 1024x256
//   const data::PictureSize own = buckets[data::nearest_bucket(buckets, {1920, 1080})];         // 640x384
//   const data::Crop crop = data::middle_crop({1920, 1080}, own);                               // 1800 x 1080 of it
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/data/pictures/picture.h"

namespace colossal::data {

/// The size of an upright picture in pixels.
struct PictureSize {
  int64_t width = 0, height = 0;
  bool operator==(const PictureSize&) const = default;
};

/// Returns the size as "512x384", width first.
std::string to_string(const PictureSize& size);

/// The shape that all rows of a batch share: the size of their pictures and, of clips, the number of their frames.
struct BucketShape {
  PictureSize size{};
  int64_t frames = 1;
  int64_t start = 0;  ///< frame of the video at which the clip of a row begins; a batch has none
  bool operator==(const BucketShape&) const = default;
};

/// Returns the multiple of `unit` that is nearest to a side, at least `unit`.
int64_t nearest_multiple(int64_t side, int64_t unit);

/// Options of bucket_sizes().
struct BucketOptions {
  PictureSize size{};     ///< the size whose area no bucket exceeds, data.size; must be set
  int64_t multiple = 64;  ///< the sides of buckets are multiples of it; 0 = one bucket, `size`
  int64_t grid = 1;       ///< pixels of a side that become one latent of the VAE; 1 = pixels are not encoded
};

/// Returns the buckets in ascending order of width, then height.
///
/// A bucket's sides are multiples of `multiple`, from half to twice the geometric mean of the sides of `size`, and its
/// area is at most that of `size`. Of these, each width has one bucket with the largest height, and each height one
/// with the largest width. The size itself, its sides rounded down to multiples, is a bucket too.
///
/// For a square `size` of s pixels these are the buckets of make_bucket_resolutions() of kohya-ss/sd-scripts whose
/// bounds are s / 2 and 2 s in whole multiples; its own defaults are 256 and 1024 for any size. For a size that is not
/// square that function adds a square in place of the size itself.
/// Errors ("data"): a side of `size` outside [1, kMaxSide]; a multiple below 0, or so large that no bucket fits; a
///                  multiple, or with multiple 0 a size, that is off the grid. The message names the nearest.
std::vector<PictureSize> bucket_sizes(const BucketOptions& options);

/// Returns the index of the bucket whose ratio of width to height is nearest to the picture's, on a logarithmic scale.
/// Among equally near buckets it is the largest, and among those the first. The comparison is exact, so every machine
/// chooses alike.
/// Errors ("data"): there are no buckets; a side of the picture or of a bucket outside [1, kMaxSide].
size_t nearest_bucket(const std::vector<PictureSize>& buckets, const PictureSize& picture);

/// Returns the largest part of the picture that has the bucket's shape, around the middle, to be resampled to the
/// bucket's size. Small pictures are enlarged.
Crop middle_crop(const PictureSize& picture, const PictureSize& bucket);

/// The indices of the pictures of each bucket, ascending.
using BucketPictures = std::vector<std::vector<int64_t>>;

/// Returns the pictures of each bucket. Each picture is in its nearest_bucket().
/// Errors: those of nearest_bucket().
BucketPictures pictures_of_buckets(const std::vector<PictureSize>& buckets, const std::vector<PictureSize>& pictures);

/// Returns the pictures of a prior (DreamBooth's pictures of the class, arXiv:2208.12242) for each bucket of
/// `training`, the pictures of which were divided into `buckets`.
///
/// Each picture of the prior is in the nearest of the buckets that have training pictures, so that all are used. If a
/// bucket with training pictures gets none, it shares those of the bucket with the nearest ratio that has some, cropped
/// to its own size. Buckets without training pictures have no pictures of the prior.
/// Errors ("data"): there are no pictures of the prior, or none of training; those of nearest_bucket().
BucketPictures prior_of_buckets(const std::vector<PictureSize>& buckets, const BucketPictures& training,
                                const std::vector<PictureSize>& prior);

}  // namespace colossal::data
