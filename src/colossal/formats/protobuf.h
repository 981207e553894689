// A reader of the wire format of protocol buffers, field by field: https://protobuf.dev/programming-guides/encoding.
//
//   for (ProtobufReader fields(bytes); fields.next();)
//     if (fields.number() == 1) name = fields.bytes();
#pragma once
#include <cstdint>
#include <string_view>

namespace colossal::formats {

/// A cursor over the fields of a message. It does not copy: the bytes must outlive the reader and its views.
/// Errors: throws Error("tokenizer", ...) if a field extends beyond the message, has another type than requested, or
/// has an obsolete type (groups).
class ProtobufReader {
 public:
  explicit ProtobufReader(std::string_view message) : rest_(message) {}
  /// Moves to the next field. Returns false at the end of the message.
  bool next();
  uint64_t number() const { return number_; }
  uint64_t integer() const;  ///< value of a varint: integers, booleans, enumerations
  bool boolean() const { return integer() != 0; }
  float real() const;              ///< value of a 32-bit float
  std::string_view bytes() const;  ///< value of a string or of a message

 private:
  enum class Wire { Varint = 0, Fixed64 = 1, Bytes = 2, Fixed32 = 5 };
  uint64_t take_varint();
  std::string_view take(uint64_t count);
  void expect(Wire wire) const;
  std::string_view rest_, bytes_;
  uint64_t number_ = 0, integer_ = 0;
  Wire wire_ = Wire::Varint;
};

}  // namespace colossal::formats
