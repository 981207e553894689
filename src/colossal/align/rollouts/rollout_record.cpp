#include "colossal/align/rollouts/rollout_record.h"

#include <cstring>
#include <type_traits>
#include <utility>

#include "colossal/base/checksum.h"

namespace colossal::align {
namespace {

/// Appends the bytes of values. The number of their elements precedes texts and lists.
class RecordBytes {
 public:
  template <class Value>
  void visit(const Value& value) {
    static_assert(std::is_arithmetic_v<Value>);
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void visit(const std::string& text) {
    visit(text.size());
    bytes += text;
  }
  template <class Value>
  void visit(const std::vector<Value>& values) {
    visit(values.size());
    for (const Value& value : values) visit(value);
  }
  void visit(const std::pair<std::string, double>& part) {
    visit(part.first);
    visit(part.second);
  }
  void visit(const std::optional<double>& value) {
    visit(value.has_value());
    visit(value.value_or(0));
  }
  std::string bytes;
};

/// Takes values from the start of `bytes`. If they end too early, it sets `is_valid` to false and leaves values as they
/// are.
class RecordValues {
 public:
  explicit RecordValues(std::string_view bytes) : bytes(bytes) {}
  template <class Value>
  void visit(Value& value) {
    static_assert(std::is_arithmetic_v<Value>);
    if (!has(1, sizeof value)) return;
    std::memcpy(&value, bytes.data(), sizeof value);
    bytes.remove_prefix(sizeof value);
  }
  void visit(std::string& text) {
    size_t size = 0;
    visit(size);
    if (!has(size, 1)) return;
    text = bytes.substr(0, size);
    bytes.remove_prefix(size);
  }
  template <class Value>
  void visit(std::vector<Value>& values) {
    size_t size = 0;
    visit(size);
    if (!has(size, sizeof(int64_t))) return;  // the least that a value takes, so a wrong size takes no memory
    values.resize(size);
    for (Value& value : values) visit(value);
  }
  void visit(std::pair<std::string, double>& part) {
    visit(part.first);
    visit(part.second);
  }
  void visit(bool& flag) {
    uint8_t byte = 0;
    visit(byte);
    flag = byte != 0;
  }
  void visit(std::optional<double>& value) {
    bool has_value = false;
    double number = 0;
    visit(has_value);
    visit(number);
    if (has_value) value = number;
  }
  bool is_valid = true;
  std::string_view bytes;

 private:
  bool has(size_t count, size_t size) {
    is_valid = is_valid && count <= bytes.size() / size;
    return is_valid;
  }
};

/// Visits the members in the order of the files.
template <class Visitor>
void visit_record(Visitor& visitor, auto& record) {
  if constexpr (requires { record.draws; }) {
    visitor.visit(record.draws);
    visitor.visit(record.prompt.index);
    visitor.visit(record.prompt.ids);
    visitor.visit(record.prompt.line);
  } else if constexpr (requires { record.answer; }) {
    visitor.visit(record.digest);
    visitor.visit(record.answer.prompt);
    visitor.visit(record.answer.number);
    visitor.visit(record.answer.version);
    visitor.visit(record.answer.finish_reason);
    visitor.visit(record.answer.ids);
    visitor.visit(record.answer.log_probabilities);
  } else {
    visitor.visit(record.digest);
    visitor.visit(record.scores);
    visitor.visit(record.score.prompt);
    visitor.visit(record.score.number);
    visitor.visit(record.score.score.value);
    visitor.visit(record.score.score.parts);
    visitor.visit(record.score.score.text);
    visitor.visit(record.score.score.is_fault);
  }
}

template <class Record>
std::optional<RolloutRecord> read_record(RecordValues values) {
  Record record;
  visit_record(values, record);
  if (!values.is_valid || !values.bytes.empty()) return std::nullopt;
  return record;
}

}  // namespace

std::string PromptRecord::digest() const { return checksum(bytes_of(*this)); }

std::string bytes_of(const RolloutRecord& record) {
  RecordBytes bytes;
  bytes.visit(static_cast<uint8_t>(record.index()));
  std::visit([&](const auto& one) { visit_record(bytes, one); }, record);
  return std::move(bytes.bytes);
}

std::optional<RolloutRecord> record_of(std::string_view bytes) {
  if (bytes.empty()) return std::nullopt;
  const RecordValues values(bytes.substr(1));
  switch (bytes.front()) {
    case 0:
      return read_record<PromptRecord>(values);
    case 1:
      return read_record<AnswerRecord>(values);
    case 2:
      return read_record<ScoreRecord>(values);
    default:
      return std::nullopt;
  }
}

}  // namespace colossal::align
