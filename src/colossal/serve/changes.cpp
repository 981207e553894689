#include "colossal/serve/changes.h"

#include <cstdint>
#include <cstring>
#include <map>
#include <type_traits>
#include <utility>
#include <variant>

#include "colossal/base/error.h"
#include "colossal/base/fields.h"

namespace colossal::serve {
namespace {

template <class Value>
concept Arithmetic = std::is_arithmetic_v<Value>;

/// Appends values to a text. Numbers have the bytes of the processor, because all ranks run the same program.
class ByteWriter {
 public:
  template <Arithmetic Number>
  void operator()(const Number& number) {
    append(&number, sizeof number);
  }
  void operator()(const std::string& text) { count(text.size()), bytes_ += text; }
  template <Arithmetic Number>
  void operator()(const std::vector<Number>& numbers) {
    count(numbers.size()), append(numbers.data(), numbers.size() * sizeof(Number));
  }
  template <class Element>
  void operator()(const std::vector<Element>& list) {
    each(list, [this](const Element& element) { (*this)(element); });
  }
  void operator()(const std::map<int64_t, double>& numbers) {
    count(numbers.size());
    for (const auto& [id, number] : numbers) (*this)(id), (*this)(number);
  }
  template <class List, class Write>
  void each(const List& list, const Write& write) {
    count(list.size());
    for (const auto& element : list) write(element);
  }
  std::string take() { return std::move(bytes_); }

 private:
  void count(size_t size) { (*this)(static_cast<uint64_t>(size)); }
  void append(const void* from, size_t size) { bytes_.append(static_cast<const char*>(from), size); }
  std::string bytes_;
};

/// Reads what a ByteWriter wrote, in the same order.
class ByteReader {
 public:
  explicit ByteReader(const std::string& bytes) : bytes_(bytes) {}

  template <Arithmetic Number>
  void operator()(Number& number) {
    copy(&number, sizeof number);
  }
  void operator()(std::string& text) { text.resize(count(1)), copy(text.data(), text.size()); }
  template <Arithmetic Number>
  void operator()(std::vector<Number>& numbers) {
    numbers.resize(count(sizeof(Number))), copy(numbers.data(), numbers.size() * sizeof(Number));
  }
  template <class Element>
  void operator()(std::vector<Element>& list) {
    each(list, [this](Element& element) { (*this)(element); });
  }
  void operator()(std::map<int64_t, double>& numbers) {
    numbers.clear();
    for (size_t left = count(sizeof(int64_t) + sizeof(double)); left > 0; --left) {
      int64_t id = 0;
      (*this)(id), (*this)(numbers[id]);
    }
  }
  template <class List, class Read>
  void each(List& list, const Read& read) {
    list.resize(count(sizeof(uint64_t)));  // each element begins with a count or a ticket
    for (auto& element : list) read(element);
  }
  void check_end() const { check(place_ == bytes_.size()); }

 private:
  void check(bool ok) const {
    require(ok, "serve", "changes must be bytes of this program: got ", bytes_.size(),
            " bytes that it did not write; run the same program on all ranks");
  }
  size_t count(size_t element_bytes) {
    uint64_t size = 0;
    (*this)(size);
    check(size <= (bytes_.size() - place_) / element_bytes);
    return size;
  }
  void copy(void* to, size_t size) {
    check(size <= bytes_.size() - place_);
    if (size > 0) std::memcpy(to, bytes_.data() + place_, size);
    place_ += size;
  }

  const std::string& bytes_;
  size_t place_ = 0;
};

/// Passes the value of each field to a ByteWriter or ByteReader.
template <class Bytes>
class FieldBytes final : public Fields {
 public:
  explicit FieldBytes(Bytes& bytes) : bytes_(bytes) {}

 private:
  void visit(const Field& field) override {
    std::visit([this](auto* value) { bytes_(*value); }, field.value);
  }
  void visit_rest(ConfigDocument&) override {}
  void enter(const char*, const char*, const char*) override {}
  void leave() override {}
  Bytes& bytes_;
};

void pass_options(ByteReader& bytes, infer::GenerationOptions& options) {
  FieldBytes<ByteReader> fields(bytes);
  options.fields(fields);
}

void pass_options(ByteWriter& bytes, infer::GenerationOptions options) {
  FieldBytes<ByteWriter> fields(bytes);
  options.fields(fields);
}

/// Writes or reads all members, so that both have the same order.
template <class Bytes, class Values>
void pass_changes(Bytes& bytes, Values& changes) {
  bytes(changes.ends);
  bytes(changes.cancelled);
  bytes.each(changes.generations, [&bytes](auto& added) {
    bytes(added.ticket), bytes(added.after);
    auto& generation = added.generation;
    bytes(generation.prompt);
    pass_options(bytes, generation.options);
    bytes(generation.ignores_end), bytes(generation.client), bytes(generation.cache_key);
  });
  bytes.each(changes.embeddings, [&bytes](auto& added) { bytes(added.ticket), bytes(added.embedding.texts); });
}

}  // namespace

std::string to_bytes(const Changes& changes) {
  if (changes.is_empty()) return "";
  ByteWriter bytes;
  pass_changes(bytes, changes);
  return bytes.take();
}

Changes changes_of(const std::string& bytes) {
  Changes changes;
  if (bytes.empty()) return changes;
  ByteReader reader(bytes);
  pass_changes(reader, changes);
  reader.check_end();
  return changes;
}

}  // namespace colossal::serve
