#include "colossal/data/pictures/bucket_reader.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/seed.h"
#include "colossal/data/order.h"
#include "colossal/text/tokenizer.h"

namespace colossal::data {
namespace {

std::vector<PictureSize> sizes_of_pictures(const SizedSamples& samples) {
  std::vector<PictureSize> sizes;
  for (int64_t i = 0; i < samples.count(); ++i) sizes.push_back(samples.size(i));
  return sizes;
}

std::vector<BucketRows> rows_of_buckets(const SizedSamples& samples, const BucketPictures& pictures, bool repeats) {
  std::vector<BucketRows> rows(pictures.size());
  for (size_t bucket = 0; bucket < pictures.size(); ++bucket)
    for (const int64_t picture : pictures[bucket]) rows[bucket].add(picture, repeats ? samples.repeats(picture) : 1);
  return rows;
}

std::vector<BucketRows> rows_of_prior(const SizedSamples* prior, const std::vector<PictureSize>& buckets,
                                      const BucketPictures& training) {
  if (prior == nullptr) return {};
  return rows_of_buckets(*prior, prior_of_buckets(buckets, training, sizes_of_pictures(*prior)), true);
}

/// Returns the seed of a picture's row. For occurrence 0 it is the one that Batches gives sample `picture`.
uint64_t seed_of_visit(uint64_t seed, const Visit& visit) {
  const uint64_t epoch_seed = derive_seed(derive_seed(seed, "samples"), static_cast<uint64_t>(visit.epoch));
  const uint64_t first = derive_seed(epoch_seed, static_cast<uint64_t>(visit.picture));
  return visit.occurrence == 0 ? first : derive_seed(first, static_cast<uint64_t>(visit.occurrence));
}

/// Returns the rows of each bucket. `rows_at(i)` is the number of those of bucket i.
template <class RowsAt>
nlohmann::json rows_of_each(const std::vector<PictureSize>& buckets, const RowsAt& rows_at) {
  nlohmann::json each = nlohmann::json::object();
  for (size_t i = 0; i < buckets.size(); ++i)
    if (rows_at(i) > 0) each[to_string(buckets[i])] = rows_at(i);
  return each;
}

std::string counted_words(int64_t count, const char* one, const char* many) {
  return concat(count, " ", count == 1 ? one : many);
}

}  // namespace

BucketReader::BucketReader(std::shared_ptr<const SizedSamples> samples, std::shared_ptr<const SizedSamples> prior,
                           const BucketReaderOptions& options)
    : BucketReader(samples, prior, options, pictures_of_buckets(options.buckets, sizes_of_pictures(*samples))) {}

BucketReader::BucketReader(std::shared_ptr<const SizedSamples> samples, std::shared_ptr<const SizedSamples> prior,
                           const BucketReaderOptions& options, const BucketPictures& pictures)
    : samples_(std::move(samples)),
      prior_(std::move(prior)),
      options_(options),
      order_(order_of(pictures)),
      prior_rows_(rows_of_prior(prior_.get(), options.buckets, pictures)) {
  for (size_t bucket = 0; bucket < order_.buckets().size(); ++bucket) rows_of(bucket).check();
  require(!prior_ || !options_.clips, "data", "clips have no prior; leave it out");
  require(!prior_ || options_.batches.batch_size % 2 == 0, "data",
          "prior needs an even batch_size, because half of each batch is its own: got ", options_.batches.batch_size,
          "; change training.batch_size");
  require(!prior_ || !options_.batches.counts_once, "data", "an evaluation has no prior; leave it out");
  if (options_.batches.counts_once) check_counted();
  skip_empty_epochs();
}

BucketOrder BucketReader::order_of(const BucketPictures& pictures) const {
  BucketOrderOptions options{.rows = std::max<int64_t>(training_rows(), 1),
                             .seed = options_.batches.seed,
                             .shuffle = options_.batches.shuffle,
                             .counts_once = options_.batches.counts_once};
  if (!options_.clips) return BucketOrder(rows_of_buckets(*samples_, pictures, !options_.batches.counts_once), options);
  require(options_.clips->shapes() == static_cast<int64_t>(options_.buckets.size()), "data",
          "clips must have the sizes of the buckets, ", options_.buckets.size(), ": got ", options_.clips->shapes());
  options.rows_of_bucket = options_.clips->batch_sizes();
  return BucketOrder(streams_of(options_.clips), options);
}

BucketShape BucketReader::bucket_of(const BucketBatch& batch) const {
  const auto shape = static_cast<size_t>(batch.bucket) % options_.buckets.size();
  return {options_.buckets[shape], options_.clips ? options_.clips->frames_of(batch.bucket) : 1};
}

tensor::ReplicaRows BucketReader::rows_of(size_t bucket) const {
  const BatchOptions& o = options_.batches;
  return {options_.clips ? options_.clips->batch_sizes().at(bucket) : o.batch_size, o.micro_batches, o.rank, o.ranks};
}

/// Refuses samples whose rows would count although they only fill up a batch.
void BucketReader::check_counted() const {
  tensor::Batch batch = samples_->make(1, bucket_of(order_.batch(0, 0)));
  discount(batch, 0);
  const auto& fields = batch.fields();
  const bool has_ignored = std::any_of(fields.begin(), fields.end(), [](const auto& f) { return f.field.ignored; });
  require(has_ignored || !options_.zeroed.empty(), "data",
          "an evaluation in buckets needs a field that marks rows which do not count: got none with an ignored value; "
          "name one in BucketReaderOptions::zeroed");
}

/// Moves to the next batch, if the epoch of this position has no further one.
void BucketReader::skip_empty_epochs() {
  for (; batch_ >= order_.batches(epoch_); ++epoch_) batch_ = 0;
}

/// Marks a row as one that does not count.
void BucketReader::discount(tensor::Batch& batch, int64_t row) const {
  for (const std::string& name : options_.zeroed) batch.at(name).select(0, row).zero_();
  for (const auto& [name, field] : batch.fields())
    if (field.ignored) field.tensor.select(0, row).fill_(*field.ignored);
}

void BucketReader::fill_from_prior(const BucketBatch& from, int64_t prior_row, tensor::Batch& batch,
                                   int64_t row) const {
  // Two buckets may share pictures of the prior, so each has its own seed.
  const uint64_t seed = derive_seed(derive_seed(options_.batches.seed, "prior"), static_cast<uint64_t>(from.bucket));
  const BucketRows& rows = prior_rows_[static_cast<size_t>(from.bucket)];
  const Visit visit = rows.at(from.number * training_rows() + prior_row, seed, options_.batches.shuffle);
  prior_->fill(visit.picture, seed_of_visit(seed, visit), bucket_of(from), batch, row);
}

void BucketReader::fill(const BucketBatch& from, int64_t global_row, tensor::Batch& batch, int64_t row) const {
  if (prior_ && global_row % 2 == 1) return fill_from_prior(from, global_row / 2, batch, row);
  const Visit visit = order_.visit(from, prior_ ? global_row / 2 : global_row);
  BucketShape shape = bucket_of(from);
  if (options_.clips) shape.start = options_.clips->start_of(from.bucket, visit);
  samples_->fill(visit.picture, seed_of_visit(options_.batches.seed, visit), shape, batch, row);
  if (!visit.counts) discount(batch, row);
}

tensor::Batch BucketReader::next(const std::vector<tensor::TokenRun>& wanted) {
  const BucketBatch from = order_.batch(epoch_, batch_);
  const tensor::ReplicaRows own = rows_of(static_cast<size_t>(from.bucket));
  tensor::Batch batch = samples_->make(own.count(), bucket_of(from));
  batch.wanted = wanted;
  text::for_each_index(static_cast<size_t>(own.count()), options_.batches.threads, [&](size_t index) {
    const auto row = static_cast<int64_t>(index);
    fill(from, own.global(row), batch, row);
  });
  ++batch_;
  skip_empty_epochs();
  return batch;
}

nlohmann::json BucketReader::position() const { return {{"epoch", epoch_}, {"batch", batch_}}; }

void BucketReader::seek(const nlohmann::json& position) {
  const int64_t epoch = position_number(position, "epoch"), batch = position_number(position, "batch");
  require(epoch < (int64_t{1} << 31) - 1 && batch < order_.batches(epoch), "data",
          "the checkpoint's data position is damaged: epoch ", epoch, ", batch ", batch);
  epoch_ = epoch;
  batch_ = batch;
}

nlohmann::json BucketReader::traits() const {
  nlohmann::json traits = samples_->traits();
  traits["seed"] = options_.batches.seed;
  traits["batch_size"] = options_.batches.batch_size;
  if (options_.clips) {
    traits.update(options_.clips->traits());
    return traits;
  }
  traits["buckets"] = rows_of_each(options_.buckets, [&](size_t i) { return order_.buckets()[i]->rows(); });
  if (!prior_) return traits;
  traits["prior"] = prior_->traits();
  traits["prior"]["buckets"] = rows_of_each(options_.buckets, [&](size_t i) { return prior_rows_[i].rows(); });
  return traits;
}

int64_t BucketReader::samples() const {
  return options_.batches.counts_once ? order_.batches(0) * options_.batches.batch_size : order_.rows();
}

std::vector<std::string> BucketReader::take_notices() {
  std::vector<std::string> notices = samples_->take_notices();
  if (!prior_) return notices;
  for (std::string& notice : prior_->take_notices()) notices.push_back(std::move(notice));
  return notices;
}

std::string BucketReader::count_of(size_t bucket) const {
  const RowStream& own = *order_.buckets()[bucket];
  const int64_t of_batch = training_rows(), waiting = own.rows() % of_batch;
  const bool counts_once = options_.batches.counts_once;
  const int64_t batches = own.rows() / of_batch + (counts_once && waiting > 0 ? 1 : 0);
  std::string line = concat("bucket ", to_string(options_.buckets[bucket]), ": ",
                            counted_words(own.pictures(), "picture", "pictures"));
  if (own.rows() != own.pictures()) line += concat(" in ", counted_words(own.rows(), "row", "rows"));
  if (prior_) line += concat(" and ", prior_rows_[bucket].pictures(), " of the prior");
  line += ", " + counted_words(batches, "batch", "batches");
  if (!counts_once && waiting > 0)
    line += concat(", ", counted_words(waiting, "row waits", "rows wait"), " for the next epoch");
  return line;
}

std::vector<std::string> BucketReader::counts() const {
  std::vector<std::string> lines;
  if (options_.clips) {
    for (const PictureSize& size : options_.buckets) lines.push_back(to_string(size));
    return options_.clips->counts(0, lines);
  }
  for (size_t bucket = 0; bucket < options_.buckets.size(); ++bucket)
    if (order_.buckets()[bucket]->rows() > 0) lines.push_back(count_of(bucket));
  return lines;
}

}  // namespace colossal::data
