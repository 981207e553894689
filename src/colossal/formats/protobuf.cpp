#include "colossal/formats/protobuf.h"

#include <bit>

#include "colossal/base/error.h"

namespace colossal::formats {
namespace {

[[noreturn]] void fail(const char* what) { throw Error("tokenizer", concat("damaged protocol buffer: ", what)); }

}  // namespace

uint64_t ProtobufReader::take_varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (rest_.empty()) fail("it ends within a number");
    const auto byte = static_cast<unsigned char>(rest_[0]);
    rest_.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return value;
  }
  fail("a number of more than ten bytes");
}

std::string_view ProtobufReader::take(uint64_t count) {
  if (count > rest_.size()) fail("a field ends after its message");
  const std::string_view taken = rest_.substr(0, count);
  rest_.remove_prefix(count);
  return taken;
}

bool ProtobufReader::next() {
  if (rest_.empty()) return false;
  const uint64_t key = take_varint();
  number_ = key >> 3;
  wire_ = static_cast<Wire>(key & 7);
  bytes_ = {};
  switch (wire_) {
    case Wire::Varint:
      integer_ = take_varint();
      break;
    case Wire::Fixed64:
      bytes_ = take(8);
      break;
    case Wire::Bytes:
      bytes_ = take(take_varint());
      break;
    case Wire::Fixed32:
      bytes_ = take(4);
      break;
    default:
      fail("a field of an unknown type");
  }
  return true;
}

void ProtobufReader::expect(Wire wire) const {
  if (wire_ != wire) fail("a field of another type than its number has");
}

uint64_t ProtobufReader::integer() const {
  expect(Wire::Varint);
  return integer_;
}

float ProtobufReader::real() const {
  expect(Wire::Fixed32);
  uint32_t bits = 0;
  for (int i = 3; i >= 0; --i) bits = bits << 8 | static_cast<unsigned char>(bytes_[i]);
  return std::bit_cast<float>(bits);
}

std::string_view ProtobufReader::bytes() const {
  expect(Wire::Bytes);
  return bytes_;
}

}  // namespace colossal::formats
