#include "colossal/data/chats/chat_stream.h"

#include <algorithm>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/seed.h"
#include "colossal/data/chats/prompts.h"
#include "colossal/data/order.h"
#include "colossal/data/streams/source_records.h"

namespace colossal::data {
namespace {

constexpr const char* kSampleNames[] = {"answers", "pairs", "rated", "ranked", "prompts"};
constexpr const char* kTooLongTraits[] = {"cut", "drop", "refuse"};

int64_t window_bytes_of(const ChatStreamOptions& options) {
  return options.records.shuffle_bytes > 0 ? options.records.shuffle_bytes : RecordOptions{}.shuffle_bytes;
}

nlohmann::json traits_of(const std::vector<StreamSource>& sources, const ChatEncoder& encoder,
                         const ChatStreamOptions& options) {
  nlohmann::json traits = stream_traits(sources, encoder.tokenizer(), options.records);
  traits.update(encoder.traits());
  traits["sequence"] = options.rules.sequence;
  traits["samples"] = kSampleNames[static_cast<size_t>(options.rules.samples)];
  traits["too_long"] = kTooLongTraits[static_cast<size_t>(options.rules.too_long)];
  traits["packing"] = options.packs() ? window_bytes_of(options) : 0;
  traits["mismatched"] = options.mismatched;
  return traits;
}

void check_options(const ChatStreamOptions& o) {
  require(o.rules.sequence >= 1 && o.threads >= 1 && o.row_multiple >= 1, "data",
          "sequence, threads and row_multiple must be at least 1: got ", o.rules.sequence, ", ", o.threads, ", ",
          o.row_multiple);
  require(!o.mismatched || o.rules.samples == ChatSamples::Rated, "data", "only rated answers have mismatched texts");
}

}  // namespace

ChatStream::ChatStream(std::vector<StreamSource> sources, std::shared_ptr<const ChatEncoder> encoder,
                       ChatStreamOptions options)
    : encoder_(std::move(encoder)),
      options_(std::move(options)),
      own_{options_.batch_size, options_.micro_batches, options_.rank, options_.ranks},
      traits_(std::make_shared<nlohmann::json>(traits_of(sources, *encoder_, options_))),
      queue_(RecordMix(sources, options_.records), options_.records.on_error, std::max(options_.threads, 1),
             [shared = encoder_, rules = options_.rules](const Record& record) {
               return chat_sample_of(record, *shared, rules);
             }) {
  check_options(options_);
  own_.check();
  place_ = place_here();
}

ChatStream::Place ChatStream::place_here() const {
  return {.row = place_.row,
          .at = queue_.position(),
          .skipped = queue_.skipped_records().count(),
          .cut = losses_.cut,
          .dropped = losses_.dropped,
          .unlabelled = losses_.unlabelled};
}

void ChatStream::go_to(const Place& place) {
  queue_.seek(place.at, place.skipped);
  losses_ = {};
  losses_.cut = place.cut;
  losses_.dropped = place.dropped;
  losses_.unlabelled = place.unlabelled;
  first_epochs_ = place.at.epochs();
  window_ = ahead_ = {};
  place_ = place;
}

/// Takes the next record. Returns false if it gives no sample.
bool ChatStream::take_sample(ChatSample& sample, int64_t* held_bytes) {
  Queue::Item item = queue_.take();
  if (held_bytes != nullptr) *held_bytes = item.held_bytes;
  const int64_t epochs = item.at.epochs();
  losses_.add(item.encoded, item.record.place(), options_.rules);
  if (item.encoded.texts.empty()) {
    const std::string lost = options_.rules.samples == ChatSamples::Prompts
                                 ? ""
                                 : concat(", ", losses_.dropped, " samples were too long, and ", losses_.unlabelled,
                                          " have no token that is trained");
    require(epochs - first_epochs_ <= static_cast<int64_t>(item.at.sources.size()) + 1, "data",
            "whole epochs of the data held no sample: ", queue_.skipped_records().count(),
            " lines or files could not be ", lost.empty() ? "used" : "read", lost, "; the last line was ",
            item.record.place());
    return false;
  }
  first_epochs_ = epochs;
  sample = std::move(item.encoded);
  return true;
}

/// Moves the notices about the records that were taken.
void ChatStream::collect_notices(std::vector<std::string>& notices) {
  for (std::string& notice : queue_.skipped_records().take_notices()) notices.push_back(std::move(notice));
  for (std::string& notice : losses_.take_notices()) notices.push_back(std::move(notice));
}

bool ChatStream::ends_window(const Window& window) {
  return window.held_bytes >= window_bytes_of(options_) || queue_.next().whole_epochs != window.epoch;
}

/// Reads further records of a window, as many as are encoded at a time. After its last one the window is packed.
void ChatStream::extend(Window& window) {
  try {
    if (!window.is_begun()) {
      window.start = place_here();
      window.epoch = queue_.next().whole_epochs;
    }
    do {
      int64_t held_bytes = 0;
      if (ChatSample sample; take_sample(sample, &held_bytes)) window.samples.push_back(std::move(sample));
      window.held_bytes += held_bytes;
      if (!ends_window(window)) continue;
      window.rows = pack_samples(window.samples, options_.rules.sequence);
      if (window.rows.empty()) window.epoch = -1, window.held_bytes = 0;  // the next records take its place
      break;
    } while (queue_.size() > 0);
  } catch (...) {
    window.failure = std::current_exception();
  }
  collect_notices(window.notices);
}

/// Makes the window after the last one the current one.
void ChatStream::begin_window() {
  while (ahead_.rows.empty() && !ahead_.failure) extend(ahead_);
  if (ahead_.failure) std::rethrow_exception(ahead_.failure);
  window_ = std::exchange(ahead_, {});
  const int64_t taken = place_.taken, row = place_.row;
  const auto count = static_cast<int64_t>(window_.rows.size());
  require(taken < count, "data", "the checkpoint's data position is damaged: row ", taken, " of a window of ", count);
  place_ = window_.start;
  place_.taken = taken;
  place_.row = row;
  if (taken > 0) return;  // a run that resumes within a window has reported its notices before
  notices_.insert(notices_.end(), window_.notices.begin(), window_.notices.end());
}

tensor::Batch ChatStream::packed_batch() {
  const int64_t sequence = options_.rules.sequence, padding = encoder_->padding_id();
  tensor::Batch batch = make_chat_batch(own_.count(), sequence, options_.rules.samples);
  const uint64_t seed = derive_seed(options_.records.seed, "packed rows");
  int64_t own = 0;
  for (int64_t row = 0; row < options_.batch_size; ++row) {
    if (window_.rows.empty()) begin_window();
    const auto count = static_cast<int64_t>(window_.rows.size());
    int64_t at = place_.taken++;
    if (own < own_.count() && own_.global(own) == row) {
      const uint64_t of_window = derive_seed(seed, static_cast<uint64_t>(place_.at.records));
      if (options_.records.shuffle) at = Order(count, of_window, 0)(at);
      fill_chat_row(texts_of_row(window_.samples, window_.rows[static_cast<size_t>(at)]), padding, batch, own++);
    }
    if (place_.taken < count) continue;
    window_ = {};
    place_ = ahead_.is_begun() ? ahead_.start : place_here();
  }
  // A part of the window after this one is encoded with each batch, so that its first batch need not wait for all.
  if (ahead_.rows.empty() && !ahead_.failure) extend(ahead_);
  return batch;
}

tensor::Batch ChatStream::single_batch() {
  std::vector<ChatSample> samples;
  while (static_cast<int64_t>(samples.size()) < options_.batch_size)
    if (ChatSample sample; take_sample(sample)) samples.push_back(std::move(sample));
  if (options_.mismatched) add_mismatched(samples, options_.rules.sequence);
  tensor::Batch batch = options_.rules.samples == ChatSamples::Prompts ? prompt_rows(samples) : labelled_rows(samples);
  collect_notices(notices_);
  place_ = place_here();
  return batch;
}

tensor::Batch ChatStream::prompt_rows(const std::vector<ChatSample>& samples) const {
  std::vector<const ChatSample*> own;
  for (int64_t row = 0; row < own_.count(); ++row) own.push_back(&samples[static_cast<size_t>(own_.global(row))]);
  return make_prompt_batch(own, encoder_->padding_id());
}

tensor::Batch ChatStream::labelled_rows(const std::vector<ChatSample>& samples) const {
  int64_t longest = 0;
  for (const ChatSample& sample : samples) longest = std::max(longest, sample.size());
  tensor::Batch batch =
      make_chat_batch(own_.count(), options_.row_length(longest), options_.rules.samples, options_.rules.answers);
  const double mean = mean_answer_length(samples);
  for (int64_t row = 0; row < own_.count(); ++row)
    fill_chat_row(samples[static_cast<size_t>(own_.global(row))], encoder_->padding_id(), batch, row, mean);
  return batch;
}

tensor::Batch ChatStream::next(const std::vector<tensor::TokenRun>& wanted) {
  const Place before = place_;
  try {
    tensor::Batch batch = options_.packs() ? packed_batch() : single_batch();
    place_.row = before.row + options_.batch_size;
    batch.wanted = wanted;
    return batch;
  } catch (...) {
    go_to(before);
    notices_.clear();
    throw;
  }
}

nlohmann::json ChatStream::position() const {
  return {{"row", place_.row},
          {"taken", place_.taken},
          {"at", place_.at.encode()},
          {"passed_over", place_.skipped},
          {"cut", place_.cut},
          {"dropped", place_.dropped},
          {"unlabelled", place_.unlabelled}};
}

void ChatStream::seek(const nlohmann::json& position) {
  const auto number = [&](const char* key) { return position_number(position, key); };
  go_to({.row = number("row"),
         .taken = number("taken"),
         .at = MixPosition::decode(position.at("at")),
         .skipped = number("passed_over"),
         .cut = number("cut"),
         .dropped = number("dropped"),
         .unlabelled = number("unlabelled")});
}

nlohmann::json ChatStream::traits() const { return *traits_; }

std::vector<std::string> ChatStream::take_notices() { return std::exchange(notices_, {}); }

}  // namespace colossal::data
