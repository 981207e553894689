// The order in which batches visit buckets and the pictures in them, as a function without a state.
//
//   data::BucketOrder order({portraits, landscapes}, {.rows = 8, .seed = 1});   // data::BucketRows of each bucket
//   const data::BucketBatch batch = order.batch(/*epoch=*/0, /*batch=*/3);      // all its rows are of batch.bucket
//   const data::Visit visit = order.visit(batch, /*row=*/5);                    // visit.picture is its sixth row
#pragma once
#include <cstdint>
#include <memory>
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

/// The endless stream of rows of one bucket, its epochs one after another.
/// Thread safety: const members may be called from several threads.
class RowStream {
 public:
  virtual ~RowStream() = default;
  /// Returns the number of rows of all epochs before an epoch.
  virtual int64_t before(int64_t epoch) const = 0;
  /// Returns row `row` of the stream, which must have one. With `shuffle` the order within an epoch is a function of
  /// (seed, epoch). Without, it is the order in which pictures were given.
  virtual Visit at(int64_t row, uint64_t seed, bool shuffle) const = 0;
  /// Returns the number of pictures, or clips, that have rows in epoch 0.
  virtual int64_t pictures() const = 0;
  /// Returns true if no epoch has a row.
  virtual bool is_empty() const { return rows() == 0; }
  int64_t rows() const { return before(1); }  ///< number of rows in epoch 0
};

/// The pictures of one bucket. A picture has as many rows in an epoch as it has repeats, in every epoch.
/// Memory: 16 bytes a picture.
class BucketRows final : public RowStream {
 public:
  /// Adds a picture. Errors ("data"): repeats below 1; more than 2^31 rows.
  void add(int64_t picture, int64_t repeats);
  int64_t before(int64_t epoch) const override { return ends_.empty() ? 0 : epoch * ends_.back(); }
  Visit at(int64_t row, uint64_t seed, bool shuffle) const override;
  int64_t pictures() const override { return static_cast<int64_t>(pictures_.size()); }

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
  std::vector<int64_t> rows_of_bucket{};  ///< the same for each bucket; empty = `rows` for all
  uint64_t seed = 0;
  bool shuffle = true;       ///< false = pictures in the order of BucketRows::add(), and batches bucket by bucket
  bool counts_once = false;  ///< true = an evaluation: batches have the rows of epoch 0, each once
};

/// The order of the batches of an epoch.
///
/// Each bucket is an endless stream of rows, its epochs one after another, each shuffled. Batches are cut from that
/// stream. Before epoch e a bucket that had R rows so far has given R / B batches (rounded down), so in epoch e it
/// gives the batches that its rows of that epoch complete; those are shuffled with the batches of other buckets. The R
/// mod B rows that complete none are the first rows of its next batch, in a later epoch. No row is dropped or doubled.
/// The waiting rows are hence known from the epoch alone, and a position needs no list of them.
///
/// With counts_once a batch never has rows of two epochs. The last batch of a bucket is filled up with rows that do not
/// count. Batches are in the order of their first pictures, unless they are shuffled, so the first batches of an
/// evaluation have pictures of all shapes.
/// Cost: a batch takes O(buckets), a row O(log(pictures)).
/// Thread safety: const members may be called from several threads.
class BucketOrder {
 public:
  using Streams = std::vector<std::shared_ptr<const RowStream>>;
  /// Errors ("data"): rows of a batch below 1; no rows in any epoch; more than 2^31 rows in epoch 0.
  BucketOrder(Streams buckets, const BucketOrderOptions& options);
  BucketOrder(std::vector<BucketRows> buckets, const BucketOrderOptions& options);
  /// Returns the number of batches in an epoch. It may be 0, if no bucket has the rows of a batch.
  int64_t batches(int64_t epoch) const;
  /// Returns a batch of an epoch. Errors ("data"): the epoch does not have it.
  BucketBatch batch(int64_t epoch, int64_t batch) const;
  /// Returns row `row` of a batch, from 0 to B - 1. With counts_once no row counts after epoch 0.
  Visit visit(const BucketBatch& batch, int64_t row) const;
  const Streams& buckets() const { return buckets_; }
  int64_t rows() const { return rows_; }  ///< number of rows in epoch 0

 private:
  int64_t rows_of_batch(size_t bucket) const {
    return options_.rows_of_bucket.empty() ? options_.rows : options_.rows_of_bucket.at(bucket);
  }
  /// Returns the number of batches that a bucket gives before an epoch.
  int64_t before(size_t bucket, int64_t epoch) const { return buckets_[bucket]->before(epoch) / rows_of_batch(bucket); }

  Streams buckets_;
  BucketOrderOptions options_;
  int64_t rows_ = 0;
  std::vector<BucketBatch> once_;  // with counts_once the batches of an epoch
};

}  // namespace colossal::data
