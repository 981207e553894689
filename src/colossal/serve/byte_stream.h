// Values as bytes, for messages between ranks of one program.
//
//   serve::ByteWriter writer;
//   writer(ticket), writer(texts);
//   const std::string bytes = writer.take();
//   serve::ByteReader reader(bytes, "tickets");
//   reader(ticket), reader(texts), reader.check_end();
#pragma once
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "colossal/base/error.h"

namespace colossal::serve {

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
/// Errors ("serve"): bytes that a ByteWriter did not write.
class ByteReader {
 public:
  /// `bytes` must outlive the reader. `what` is a plural noun for errors: "changes".
  ByteReader(const std::string& bytes, const char* what) : bytes_(bytes), what_(what) {}

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
    require(ok, "serve", what_, " must be bytes of this program: got ", bytes_.size(),
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
  const char* const what_;
  size_t place_ = 0;
};

}  // namespace colossal::serve
