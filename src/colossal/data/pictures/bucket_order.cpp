#include "colossal/data/pictures/bucket_order.h"

#include <algorithm>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/seed.h"
#include "colossal/data/order.h"

namespace colossal::data {
namespace {

// With epochs below 2^31 the rows of all epochs together are below 2^62.
constexpr int64_t kMaxBucketRows = int64_t{1} << 31;

void check_bucket_rows(int64_t rows) {
  require(rows <= kMaxBucketRows, "data", "the repeats of all pictures must be at most 2^31 together: got ", rows,
          "; lower the number before the _ of folders such as 10_name");
}

BucketOrder::Streams streams_of(std::vector<BucketRows> buckets) {
  BucketOrder::Streams streams;
  for (BucketRows& bucket : buckets) streams.push_back(std::make_shared<const BucketRows>(std::move(bucket)));
  return streams;
}

}  // namespace

void BucketRows::add(int64_t picture, int64_t repeats) {
  require(repeats >= 1, "data", "the repeats of a picture must be at least 1: got ", repeats, " of picture ", picture);
  check_bucket_rows(std::min(repeats, kMaxBucketRows + 1) + rows());
  ends_.push_back(rows() + repeats);
  pictures_.push_back(picture);
}

Visit BucketRows::at(int64_t row, uint64_t seed, bool shuffle) const {
  const int64_t epoch = row / rows(), position = row % rows();
  const int64_t place = shuffle ? Order(rows(), seed, epoch)(position) : position;
  const auto found = std::upper_bound(ends_.begin(), ends_.end(), place) - ends_.begin();
  const int64_t first = found == 0 ? 0 : ends_[static_cast<size_t>(found - 1)];
  return {.epoch = epoch, .picture = pictures_[static_cast<size_t>(found)], .occurrence = place - first};
}

BucketOrder::BucketOrder(std::vector<BucketRows> buckets, const BucketOrderOptions& options)
    : BucketOrder(streams_of(std::move(buckets)), options) {}

BucketOrder::BucketOrder(Streams buckets, const BucketOrderOptions& options)
    : buckets_(std::move(buckets)), options_(options) {
  for (size_t i = 0; i < buckets_.size(); ++i) {
    require(rows_of_batch(i) >= 1, "data", "a batch must take at least 1 row of its bucket: got ", rows_of_batch(i));
    check_bucket_rows(rows_ += buckets_[i]->rows());
  }
  require(std::any_of(buckets_.begin(), buckets_.end(), [](const auto& bucket) { return !bucket->is_empty(); }), "data",
          "there must be pictures: got none");
  if (!options_.counts_once) return;
  std::vector<std::pair<int64_t, BucketBatch>> by_picture;
  for (size_t i = 0; i < buckets_.size(); ++i)
    for (int64_t row = 0; row < buckets_[i]->rows(); row += rows_of_batch(i))
      by_picture.push_back({buckets_[i]->at(row, options_.seed, false).picture,
                            {.bucket = static_cast<int64_t>(i), .number = row / rows_of_batch(i)}});
  const auto order = [](const auto& a, const auto& b) { return a.first < b.first; };
  std::stable_sort(by_picture.begin(), by_picture.end(), order);
  for (const auto& [picture, batch] : by_picture) once_.push_back(batch);
}

int64_t BucketOrder::batches(int64_t epoch) const {
  if (options_.counts_once) return static_cast<int64_t>(once_.size());
  int64_t count = 0;
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket)
    count += before(bucket, epoch + 1) - before(bucket, epoch);
  return count;
}

BucketBatch BucketOrder::batch(int64_t epoch, int64_t batch) const {
  const int64_t count = batches(epoch);
  require(batch >= 0 && batch < count, "data", "epoch ", epoch, " has ", count, " batches: got batch ", batch);
  int64_t place = options_.shuffle ? Order(count, derive_seed(options_.seed, "batches"), epoch)(batch) : batch;
  if (options_.counts_once) {
    BucketBatch found = once_[static_cast<size_t>(place)];
    found.epoch = epoch;
    return found;
  }
  size_t bucket = 0;
  for (;; ++bucket) {
    const int64_t first = before(bucket, epoch), own = before(bucket, epoch + 1) - first;
    if (place < own) return {.epoch = epoch, .bucket = static_cast<int64_t>(bucket), .number = first + place};
    place -= own;
  }
}

Visit BucketOrder::visit(const BucketBatch& batch, int64_t row) const {
  const uint64_t seed = derive_seed(derive_seed(options_.seed, "buckets"), static_cast<uint64_t>(batch.bucket));
  const auto bucket = static_cast<size_t>(batch.bucket);
  const int64_t own = buckets_[bucket]->rows(), place = batch.number * rows_of_batch(bucket) + row;
  if (!options_.counts_once) return buckets_[bucket]->at(place, seed, options_.shuffle);
  Visit visit = buckets_[bucket]->at(place % own, seed, options_.shuffle);  // epoch 0 fills up its last batch
  visit.counts = batch.epoch == 0 && place < own;
  return visit;
}

}  // namespace colossal::data
