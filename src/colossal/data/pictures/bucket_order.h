// The order in which batches visit buckets and the pictures in them, as a function without a state.
//
//   data::BucketOrder order({portraits, landscapes}, {.rows = 8, .seed = 1});   // data::BucketRows of each bucket
//   const data::BucketBatch batch = order.batch(/*epoch=*/0, /*batch=*/3);      // all its rows are of batch.bucket
//   const data::Visit visit = order.visit(batch, /*row=*/5);                    // visit.picture is its sixth row
#pragma once
#include <cstdint>
#include <vector>

namespace colossal::data {

/// A row that a picture gets in an epoch.
struct Visit {
  int64_t epoch = 0;       ///< the epoch of the row. A row that waited has the epoch in which it was not read
  int64_t picture = 0;     ///< index of the picture
  int64_t occurrence = 0;  ///< number of the picture's rows of this epoch before this one, of its repeats
  bool counts = true;      ///< false = the row only fills up a batch of an evaluation
  bool operator==(const Visit&) const = default;
};

/// The pictures of one bucket. A picture has as many rows in an epoch as it has repeats.
/// Memory: 16 bytes a picture.
class BucketRows {
 public:
  /// Adds a picture. Errors ("data"): repeats below 1; more than 2^31 rows.
  void add(int64_t picture, int64_t repeats);
  int64_t pictures() const { return static_cast<int64_t>(pictures_.size()); }
  int64_t rows() const { return ends_.empty() ? 0 : ends_.back(); }  ///< number of rows in an epoch
  /// Returns row `row` of the endless stream of this bucket, which has rows() rows an epoch, at least one. With
  /// `shuffle` the order of an epoch is a function of (seed, epoch). Without, it is the order of add().
  Visit at(int64_t row, uint64_t seed, bool shuffle) const;

 private:
  std::vector<int64_t> pictures_, ends_;  // ends_: number of rows of a picture and all before it
};

/// A batch: rows [number * B, (number + 1) * B) of the stream of `bucket`.
struct BucketBatch {
  int64_t epoch = 0, bucket = 0, number = 0;
  bool operator==(const BucketBatch&) const = default;
};

/// Options of a BucketOrder.
struct BucketOrderOptions {
  int64_t rows = 0;  ///< number of rows B that a batch takes of its bucket; must be set (at least 1)
  uint64_t seed = 0;
  bool shuffle = true;       ///< false = pictures in the order of BucketRows::add(), and batches bucket by bucket
  bool counts_once = false;  ///< true = an evaluation: batches have the rows of epoch 0, each once
};

/// The order of the batches of an epoch.
///
/// Each bucket is an endless stream of rows, its epochs one after another, each shuffled. Batches are cut from that
/// stream. Before epoch e a bucket of R rows has given e * R / B batches (rounded down), so in epoch e it gives the
/// batches that its rows of that epoch complete; those are shuffled with the batches of other buckets. The e * R mod B
/// rows that complete none are the first rows of its next batch, in a later epoch. No row is dropped or doubled.
/// The waiting rows are hence known from the epoch alone, and a position needs no list of them.
///
/// With counts_once a batch never has rows of two epochs. The last batch of a bucket is filled up with rows that do not
/// count. Batches are in the order of their first pictures, unless they are shuffled, so the first batches of an
/// evaluation have pictures of all shapes.
/// Cost: a batch takes O(buckets), a row O(log(pictures)).
/// Thread safety: const members may be called from several threads.
class BucketOrder {
 public:
  /// Errors ("data"): options.rows below 1; no rows; more than 2^31 rows.
  BucketOrder(std::vector<BucketRows> buckets, const BucketOrderOptions& options);
  /// Returns the number of batches in an epoch. It may be 0, if no bucket has the rows of a batch.
  int64_t batches(int64_t epoch) const;
  /// Returns a batch of an epoch. Errors ("data"): the epoch does not have it.
  BucketBatch batch(int64_t epoch, int64_t batch) const;
  /// Returns row `row` of a batch, from 0 to B - 1. With counts_once no row counts after epoch 0.
  Visit visit(const BucketBatch& batch, int64_t row) const;
  const std::vector<BucketRows>& buckets() const { return buckets_; }
  int64_t rows() const { return rows_; }  ///< number of rows in an epoch

 private:
  /// Returns the number of batches that a bucket gives before an epoch.
  int64_t before(const BucketRows& bucket, int64_t epoch) const { return epoch * bucket.rows() / options_.rows; }

  std::vector<BucketRows> buckets_;
  BucketOrderOptions options_;
  int64_t rows_ = 0;
  std::vector<BucketBatch> once_;  // with counts_once the batches of an epoch
};

}  // namespace colossal::data
