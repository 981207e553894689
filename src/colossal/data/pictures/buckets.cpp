#include "colossal/data/pictures/buckets.h"

#include <algorithm>
#include <tuple>

#include "colossal/base/error.h"

namespace colossal::data {
namespace {

void check_sides(const PictureSize& size, const char* what) {
  const auto fits = [](int64_t side) { return side >= 1 && side <= kMaxSide; };
  require(fits(size.width) && fits(size.height), "data", what, " must have sides from 1 to ", kMaxSide, ": got ",
          to_string(size));
}

/// Refuses sizes that the VAE cannot encode, and a multiple that leaves no bucket.
void check_buckets(const BucketOptions& o) {
  check_sides(o.size, "size");
  require(o.grid >= 1, "data", "the grid of buckets must be at least 1 pixel: got ", o.grid);
  require(o.multiple >= 0, "data", "buckets must be at least 0: got ", o.multiple,
          "; set data.buckets = 0 to crop all pictures to data.size");
  const PictureSize near{nearest_multiple(o.size.width, o.grid), nearest_multiple(o.size.height, o.grid)};
  require(o.multiple > 0 || near == o.size, "data", "the sides of size must be multiples of the VAE's grid, ", o.grid,
          " pixels: got ", to_string(o.size), "; set data.size = [", near.width, ", ", near.height, "]");
  require(o.multiple % o.grid == 0, "data", "buckets must be a multiple of the VAE's grid, ", o.grid, " pixels: got ",
          o.multiple, "; set data.buckets = ", nearest_multiple(o.multiple, o.grid));
  require(o.multiple <= kMaxSide && o.multiple * o.multiple <= o.size.width * o.size.height, "data",
          "buckets must be at most the geometric mean of the sides of size: got ", o.multiple, ", size ",
          to_string(o.size), "; lower data.buckets");
}

/// The ratio of two shapes, 1 or more: 1 if they are equal.
struct Mismatch {
  uint64_t more, less;
  Mismatch(const PictureSize& a, const PictureSize& b)
      : more(static_cast<uint64_t>(std::max(a.width * b.height, a.height * b.width))),
        less(static_cast<uint64_t>(std::min(a.width * b.height, a.height * b.width))) {}
  // A product of four sides of at most kMaxSide is below 2^64.
  bool operator<(const Mismatch& other) const { return more * other.less < other.more * less; }
};

/// Returns the buckets with an index in `chosen`.
std::vector<PictureSize> sizes_at(const std::vector<PictureSize>& buckets, const std::vector<size_t>& chosen) {
  std::vector<PictureSize> sizes;
  for (const size_t index : chosen) sizes.push_back(buckets.at(index));
  return sizes;
}

/// Returns the indices of the buckets that have pictures.
std::vector<size_t> occupied(const BucketPictures& pictures) {
  std::vector<size_t> indices;
  for (size_t i = 0; i < pictures.size(); ++i)
    if (!pictures[i].empty()) indices.push_back(i);
  return indices;
}

}  // namespace

int64_t nearest_multiple(int64_t side, int64_t unit) { return std::max((side + unit / 2) / unit, int64_t{1}) * unit; }

std::string to_string(const PictureSize& size) { return concat(size.width, "x", size.height); }

std::vector<PictureSize> bucket_sizes(const BucketOptions& o) {
  check_buckets(o);
  if (o.multiple == 0) return {o.size};
  const int64_t area = o.size.width * o.size.height;
  const auto down = [&](int64_t side) { return side / o.multiple * o.multiple; };
  std::vector<PictureSize> buckets;
  if (const PictureSize own{down(o.size.width), down(o.size.height)}; own.width > 0 && own.height > 0)
    buckets.push_back(own);
  // The largest other side of a side from half the mean is at most twice the mean, because their product is the area.
  for (int64_t side = o.multiple; side * side <= 4 * area; side += o.multiple) {
    const int64_t other = down(area / side);
    if (4 * side * side < area || 4 * other * other < area) continue;
    buckets.push_back({side, other});
    buckets.push_back({other, side});
  }
  const auto order = [](const PictureSize& a, const PictureSize& b) {
    return std::tie(a.width, a.height) < std::tie(b.width, b.height);
  };
  std::sort(buckets.begin(), buckets.end(), order);
  buckets.erase(std::unique(buckets.begin(), buckets.end()), buckets.end());
  return buckets;
}

size_t nearest_bucket(const std::vector<PictureSize>& buckets, const PictureSize& picture) {
  require(!buckets.empty(), "data", "a picture needs a bucket: got none");
  check_sides(picture, "a picture");
  size_t best = 0;
  for (size_t i = 0; i < buckets.size(); ++i) {
    check_sides(buckets[i], "a bucket");
    const Mismatch mine(buckets[i], picture), of_best(buckets[best], picture);
    const auto area = [&](size_t at) { return buckets[at].width * buckets[at].height; };
    if (mine < of_best || (!(of_best < mine) && area(i) > area(best))) best = i;
  }
  return best;
}

Crop middle_crop(const PictureSize& picture, const PictureSize& bucket) {
  const auto all_wide = static_cast<double>(picture.width), all_high = static_cast<double>(picture.height);
  const double ratio = static_cast<double>(bucket.width) / static_cast<double>(bucket.height);
  const bool is_wide = picture.width * bucket.height > picture.height * bucket.width;
  const double width = is_wide ? all_high * ratio : all_wide, height = is_wide ? all_high : all_wide / ratio;
  return {{(all_wide - width) / 2, (all_high - height) / 2, width, height}, bucket.width, bucket.height};
}

BucketPictures pictures_of_buckets(const std::vector<PictureSize>& buckets, const std::vector<PictureSize>& pictures) {
  BucketPictures divided(buckets.size());
  for (size_t i = 0; i < pictures.size(); ++i)
    divided[nearest_bucket(buckets, pictures[i])].push_back(static_cast<int64_t>(i));
  return divided;
}

BucketPictures prior_of_buckets(const std::vector<PictureSize>& buckets, const BucketPictures& training,
                                const std::vector<PictureSize>& prior) {
  require(!prior.empty(), "data", "the prior must have pictures: got none; set data.prior to a folder with some");
  const std::vector<size_t> used = occupied(training);
  const BucketPictures of_used = pictures_of_buckets(sizes_at(buckets, used), prior);
  BucketPictures divided(buckets.size());
  for (size_t i = 0; i < used.size(); ++i) divided.at(used[i]) = of_used[i];
  const std::vector<size_t> filled = occupied(divided);
  const std::vector<PictureSize> lenders = sizes_at(buckets, filled);
  for (const size_t bucket : used)
    if (divided[bucket].empty()) divided[bucket] = divided[filled[nearest_bucket(lenders, buckets[bucket])]];
  return divided;
}

}  // namespace colossal::data
