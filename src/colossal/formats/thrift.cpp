#include "colossal/formats/thrift.h"

#include <algorithm>

#include "colossal/base/error.h"

namespace colossal::formats {
namespace {

enum ThriftType { kStop, kTrue, kFalse, kByte, kShort, kInt, kLong, kDouble, kBinary, kList, kSet, kMap, kStruct };

class ThriftReader {
 public:
  explicit ThriftReader(std::string_view& bytes) : bytes_(bytes) {}

  ThriftValue read_struct(int depth) {
    ThriftValue value;
    for (int id = 0;;) {
      const uint8_t header = byte();
      const int type = header & 15, step = header >> 4;
      if (type == kStop) return value;
      id = step != 0 ? id + step : static_cast<int>(zigzag());
      value.parts.push_back(read(type, depth, false));
      value.parts.back().id = id;
    }
  }

 private:
  static constexpr int kDeepest = 16;
  static constexpr int64_t kMaxValues = 4'000'000;

  std::string_view take(uint64_t count) {
    require(count <= bytes_.size(), "data", "a structure is damaged or cut short");
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }
  uint8_t byte() { return static_cast<uint8_t>(take(1)[0]); }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const uint8_t next = byte();
      value |= static_cast<uint64_t>(next & 127) << shift;
      if (next < 128) return value;
    }
    throw Error("data", "a structure is damaged: a number of more than 64 bits");
  }
  int64_t zigzag() {
    const uint64_t value = varint();
    return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
  }

  ThriftValue read(int type, int depth, bool in_list) {
    require(depth < kDeepest && ++values_ <= kMaxValues, "data", "a structure is damaged: too deep or too large");
    ThriftValue value;
    if (type == kTrue || type == kFalse)  // a list has a byte for each boolean; in a struct the type is the value
      value.number = (in_list ? byte() : type) == kTrue ? 1 : 0;
    else if (type == kByte)
      value.number = static_cast<int8_t>(byte());
    else if (type == kShort || type == kInt || type == kLong)
      value.number = zigzag();
    else if (type == kDouble)
      value.bytes = take(8);
    else if (type == kBinary)
      value.bytes = take(varint());
    else if (type == kList || type == kSet)
      read_list(value, depth);
    else if (type == kMap)
      read_map(value, depth);
    else if (type == kStruct)
      value = read_struct(depth + 1);
    else
      throw Error("data", concat("a structure is damaged: a value of type ", type));
    return value;
  }

  void read_list(ThriftValue& list, int depth) {
    const uint8_t header = byte();
    const uint64_t count = (header >> 4) == 15 ? varint() : header >> 4;
    require(count <= bytes_.size(), "data", "a structure is damaged: a list of ", count);  // each has at least one byte
    for (uint64_t i = 0; i < count; ++i) list.parts.push_back(read(header & 15, depth + 1, true));
  }

  void read_map(ThriftValue& map, int depth) {
    const uint64_t count = varint();
    if (count == 0) return;
    require(count <= bytes_.size(), "data", "a structure is damaged: a map of ", count);
    const uint8_t types = byte();
    for (uint64_t i = 0; i < 2 * count; ++i)
      map.parts.push_back(read(i % 2 == 0 ? types >> 4 : types & 15, depth + 1, true));
  }

  std::string_view& bytes_;
  int64_t values_ = 0;
};

}  // namespace

const ThriftValue* ThriftValue::find(int field) const {
  const auto found =
      std::find_if(parts.begin(), parts.end(), [&](const ThriftValue& part) { return part.id == field; });
  return found != parts.end() ? &*found : nullptr;
}

int64_t ThriftValue::number_of(int field) const {
  const ThriftValue* found = find(field);
  require(found != nullptr, "data", "a structure is damaged: it has no field ", field);
  return found->number;
}

int64_t ThriftValue::number_of(int field, int64_t otherwise) const {
  const ThriftValue* found = find(field);
  return found != nullptr ? found->number : otherwise;
}

ThriftValue read_thrift(std::string_view& bytes) { return ThriftReader(bytes).read_struct(0); }

}  // namespace colossal::formats
