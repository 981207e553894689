// Batches of pictures of many shapes, or of clips of several lengths: all rows of a batch have the shape of one bucket.
//
//   const auto samples = std::make_shared<MySizedSamples>(...);                          // a data::SizedSamples
//   auto reader = std::make_unique<data::BucketReader>(
//       samples, data::BucketReaderOptions{.batches = {.batch_size = 8, .seed = 1},
//                                          .buckets = data::bucket_sizes({.size = {512, 512}, .grid = 8})});
//   for (const std::string& line : reader->counts()) log.info(line);   // bucket 512x512: 120 pictures, 15 batches
//   data::Batches batches(std::move(reader), /*pinned=*/false);
#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "colossal/data/batches.h"
#include "colossal/data/pictures/bucket_order.h"
#include "colossal/data/pictures/buckets.h"
#include "colossal/data/videos/clip_rows.h"
#include "colossal/tensor/replica_rows.h"

namespace colossal::data {

/// A set of pictures or videos of many sizes, from which batches of one size are made.
/// Thread safety: several threads may call const members.
class SizedSamples {
 public:
  virtual ~SizedSamples() = default;
  virtual int64_t count() const = 0;
  /// Returns the size of upright picture `index`, known without decoding it.
  virtual PictureSize size(int64_t index) const = 0;
  /// Returns how many rows the picture gets in an epoch, at least 1.
  virtual int64_t repeats(int64_t) const { return 1; }
  /// Returns a batch of `rows` rows that has all fields of these samples, for pictures or clips of the shape `bucket`.
  virtual tensor::Batch make(int64_t rows, const BucketShape& bucket) const = 0;
  /// Fills row `row` of `batch` with picture or video `index`, cropped to `bucket`, for which make() returned the
  /// batch. Of a video these are the frames from `bucket.start` on. `seed`, which belongs to this row of this epoch, is
  /// the only source of randomness.
  virtual void fill(int64_t index, uint64_t seed, const BucketShape& bucket, tensor::Batch& batch,
                    int64_t row) const = 0;
  /// Returns a JSON object of the properties that must be the same whenever a position in these samples is restored.
  virtual nlohmann::json traits() const = 0;
  /// Returns one line for people about each picture that was skipped since the last call.
  virtual std::vector<std::string> take_notices() const { return {}; }
};

/// Options of a BucketReader.
struct BucketReaderOptions {
  BatchOptions batches{};              ///< `pinned` is not used
  std::vector<PictureSize> buckets{};  ///< bucket_sizes(); must be set
  /// The clips of each length and size, whose shapes are `buckets`; their batch sizes take the place of that of
  /// `batches`. Null = pictures.
  std::shared_ptr<const ClipRows> clips{};
  /// Names of fields of each batch that are 0 in rows that do not count (BatchOptions::counts_once), such as the weight
  /// of a row. Fields that have an ignored value get that value in such rows.
  std::vector<std::string> zeroed{};
};

/// An endless sequence of batches, in the order of BucketOrder. Each picture is in its nearest_bucket().
///
/// The order is a pure function of the seed, the batch size and the sizes and repeats of the pictures, so any number of
/// ranks and micro-batches sees the same global batches. A position is {"epoch", "batch"}; which rows wait for a later
/// epoch follows from it. The seed of a row is a pure function of (seed, epoch, picture, occurrence). For occurrence 0
/// it is the one that data::Batches gives a sample of Samples.
///
/// With a prior (DreamBooth, arXiv:2208.12242) the rows 0, 2, 4, ... of a global batch are training pictures and the
/// rows 1, 3, 5, ... pictures of the prior, so a micro-batch of an even number of rows has half of each. For each
/// bucket the prior's pictures (prior_of_buckets()) are read in cycles, each shuffled, that continue from batch to
/// batch.
///
/// With clips, a batch has clips of one length and one size, and its length has a batch size of its own. The lengths
/// that clips draw follow from (seed, epoch), too, so a position is the same pair of numbers.
///
/// With counts_once (an evaluation) repeats are not used. Rows that fill up the last batch of a bucket do not count.
/// Errors: next() throws the error of SizedSamples::make() or of the first row that cannot be filled, and stays at its
///         position.
/// Thread safety: that of BatchReader. fill() is called by options.batches.threads threads.
class BucketReader final : public BatchReader {
 public:
  /// `prior`: null = none. Its fill() writes rows of batches that samples->make() returned.
  /// Errors ("data"): no pictures; a prior with an odd batch size, with clips or counts_once, or without pictures;
  ///                  clips of another number of sizes than `buckets`; counts_once,
  ///                  if no field shows which rows count; errors of tensor::ReplicaRows::check(), nearest_bucket() and
  ///                  BucketRows::add().
  BucketReader(std::shared_ptr<const SizedSamples> samples, std::shared_ptr<const SizedSamples> prior,
               const BucketReaderOptions& options);
  BucketReader(std::shared_ptr<const SizedSamples> samples, const BucketReaderOptions& options)
      : BucketReader(std::move(samples), nullptr, options) {}

  tensor::Batch next(const std::vector<tensor::TokenRun>& wanted) override;
  nlohmann::json position() const override;
  void seek(const nlohmann::json& position) override;
  /// Returns the traits of the samples and of the prior, the seed, the batch size, and the rows of each bucket.
  nlohmann::json traits() const override;
  /// Returns the number of rows of training pictures in an epoch. With counts_once the rows that fill up batches are
  /// included, so that samples() / batch size is the number of batches that have every picture.
  int64_t samples() const override;
  std::vector<std::string> take_notices() override;

  /// Returns a line for people about each bucket that has pictures: "bucket 512x512: 121 pictures, 30 batches, 1 row
  /// waits for the next epoch". With clips, those of ClipRows::counts() in epoch 0.
  std::vector<std::string> counts() const;

 private:
  BucketReader(std::shared_ptr<const SizedSamples> samples, std::shared_ptr<const SizedSamples> prior,
               const BucketReaderOptions& options, const BucketPictures& pictures);
  /// Returns the number of rows of a global batch that are training pictures.
  int64_t training_rows() const { return options_.batches.batch_size / (prior_ ? 2 : 1); }
  BucketOrder order_of(const BucketPictures& pictures) const;
  BucketShape bucket_of(const BucketBatch& batch) const;
  /// Returns this replica's rows of the batches of a bucket.
  tensor::ReplicaRows rows_of(size_t bucket) const;
  void check_counted() const;
  void skip_empty_epochs();
  void fill(const BucketBatch& from, int64_t global_row, tensor::Batch& batch, int64_t row) const;
  void fill_from_prior(const BucketBatch& from, int64_t prior_row, tensor::Batch& batch, int64_t row) const;
  void discount(tensor::Batch& batch, int64_t row) const;
  std::string count_of(size_t bucket) const;

  std::shared_ptr<const SizedSamples> samples_, prior_;
  BucketReaderOptions options_;
  BucketOrder order_;
  std::vector<BucketRows> prior_rows_;  // one for each bucket; empty without a prior
  int64_t epoch_ = 0, batch_ = 0;       // the next batch
};

}  // namespace colossal::data
