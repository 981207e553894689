// What Parquet's footers and page headers are written in: Thrift's compact protocol.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

namespace colossal::data {

/// One value; of a struct or a list the values in it. Strings point into the bytes that were read.
struct ThriftValue {
  int id = 0;          ///< of a field in its struct
  int64_t number = 0;  ///< of booleans and integers
  std::string_view bytes{};
  std::vector<ThriftValue> parts{};

  /// The field of a struct; null where it is not there.
  const ThriftValue* find(int field) const;
  /// Its number. Errors ("data"): it is not there; the one below gives `otherwise`.
  int64_t number_of(int field) const;
  int64_t number_of(int field, int64_t otherwise) const;
};

/// Takes a struct from the front of `bytes`.
/// Errors ("data"): bytes that end within it or are none, more than 16 values within one another, more than four
/// million. Cost: some 80 bytes of memory a value.
ThriftValue read_thrift(std::string_view& bytes);

}  // namespace colossal::data
