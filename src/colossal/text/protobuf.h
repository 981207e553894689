// The wire format of protocol buffers, read field by field: https://protobuf.dev/programming-guides/encoding.
//
//   for (ProtobufReader fields(bytes); fields.next();)
//     if (fields.number() == 1) name = fields.bytes();
#pragma once
#include <cstdint>
#include <string_view>

namespace colossal::text {

/// Views of bytes that somebody else wrote, which must outlive it.
/// Errors: throws Error("tokenizer", ...) where a field ends behind the message, is of another type than asked for, or
/// of one that is no longer used (groups).
class ProtobufReader {
 public:
  explicit ProtobufReader(std::string_view message) : rest_(message) {}
  /// Goes to the next field; false: there is none.
  bool next();
  uint64_t number() const { return number_; }
  uint64_t integer() const;  ///< of a varint: integers, booleans, enumerations
  bool boolean() const { return integer() != 0; }
  float real() const;              ///< of 32 bits
  std::string_view bytes() const;  ///< strings and messages

 private:
  enum class Wire { Varint = 0, Fixed64 = 1, Bytes = 2, Fixed32 = 5 };
  uint64_t take_varint();
  std::string_view take(uint64_t count);
  void expect(Wire wire) const;
  std::string_view rest_, bytes_;
  uint64_t number_ = 0, integer_ = 0;
  Wire wire_ = Wire::Varint;
};

}  // namespace colossal::text
