// Records that several threads encode ahead of their use, in the order of a mix.
//
//   EncodeAhead<std::vector<int64_t>> queue(RecordMix(sources, options), options.on_error, threads, encode);
//   const auto item = queue.take();                                // the next record: item.encoded
#pragma once
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/data/streams/record_mix.h"
#include "colossal/data/streams/record_source.h"
#include "colossal/text/tokenizer.h"

namespace colossal::data {

/// A queue of records as values of type `Encoded`, which `encode` makes of them on several threads.
/// Memory: 256 records or 1 MiB of lines, whichever is less, each time that records are read.
/// Thread safety: one thread calls the members; `encode` is called by several threads.
template <class Encoded>
class EncodeAhead {
 public:
  using Encode = std::function<Encoded(const Record&)>;

  /// One record. Its line is empty.
  struct Item {
    MixPosition at;        ///< the position before the record
    int64_t whole_epochs;  ///< MixPosition::whole_epochs() after the record
    Record record;
    int64_t held_bytes;  ///< Record::held_bytes() of the record with its line
    Encoded encoded;
    std::exception_ptr failure;
    std::vector<std::string> faults;  ///< messages about records skipped since the record before, and about this one
    int64_t skipped_records = 0;      ///< number of records skipped before these faults
  };

  EncodeAhead(RecordMix mix, OnError on_error, int threads, Encode encode)
      : mix_(std::move(mix)), on_error_(on_error), threads_(threads), encode_(std::move(encode)) {}

  /// Removes and returns the next record, and counts its faults. With OnError::Skip a record that `encode` refuses with
  /// an Error is a fault, and its value is empty.
  /// Errors: those of RecordMix::next() and of `encode`.
  Item take() {
    next();
    Item item = std::move(items_.front());
    items_.pop_front();
    item.skipped_records = skipped_.count();
    for (const std::string& fault : item.faults) skipped_.add(fault);
    if (item.failure) std::rethrow_exception(item.failure);
    return item;
  }

  /// Returns the record that take() returns next, which may hold a failure.
  const Item& next() {
    if (items_.empty()) read_more();
    return items_.front();
  }

  /// Reads and encodes further records, unless the last one that was read is a failure.
  void read_more() {
    const size_t first = items_.size();
    MixPosition at = mix_.position();
    for (int64_t bytes = 0; items_.size() - first < kRecords && bytes < kBytes;) {
      if (!items_.empty() && items_.back().failure) break;
      Item item{.at = std::move(at)};
      try {
        item.record = mix_.next();
      } catch (...) {  // kept for the caller that needs this record, because earlier ones can still be used
        item.failure = std::current_exception();
      }
      item.faults = mix_.take_faults();
      at = mix_.position();
      item.whole_epochs = at.whole_epochs();
      item.held_bytes = item.record.held_bytes();
      bytes += static_cast<int64_t>(item.record.line.size());
      items_.push_back(std::move(item));
    }
    text::for_each_index(items_.size() - first, threads_, [&](size_t i) {
      if (!items_[first + i].failure) encode(items_[first + i]);
    });
  }

  size_t size() const { return items_.size(); }  ///< number of records that were encoded and not taken
  /// Returns the position before the record that take() returns next.
  MixPosition position() const { return items_.empty() ? mix_.position() : items_.front().at; }
  /// Moves to a position, before which `skipped_records` were skipped. Errors: the same as RecordMix::seek().
  void seek(const MixPosition& position, int64_t skipped_records) {
    mix_.seek(position);
    items_.clear();
    skipped_.begin_at(skipped_records);
  }

  /// The skipped records of the items that were taken.
  SkippedRecords& skipped_records() { return skipped_; }
  const SkippedRecords& skipped_records() const { return skipped_; }

 private:
  static constexpr size_t kRecords = 256;
  static constexpr int64_t kBytes = 1 << 20;

  void encode(Item& item) const {
    try {
      item.encoded = encode_(item.record);
    } catch (const Error& error) {
      if (on_error_ == OnError::Skip) {
        item.faults.push_back(error.message());
      } else {
        item.failure = std::make_exception_ptr(
            Error("data", concat(error.message(), "; to train without it set data.on_error = \"skip\"")));
      }
    } catch (...) {
      item.failure = std::current_exception();
    }
    item.record.line.clear();
    item.record.line.shrink_to_fit();
  }

  RecordMix mix_;
  OnError on_error_;
  int threads_;
  Encode encode_;
  std::deque<Item> items_;
  SkippedRecords skipped_;
};

}  // namespace colossal::data
