// A reader of Thrift's compact protocol, the format of Parquet's footers and page headers.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

namespace colossal::formats {

/// One value. A struct or a list has its values in `parts`. `bytes` points into the bytes that were read.
struct ThriftValue {
  int id = 0;                ///< number of the field within its struct
  int64_t number = 0;        ///< value of a boolean or an integer
  std::string_view bytes{};  ///< value of a string or a double
  std::vector<ThriftValue> parts{};

  /// Returns a field of a struct; null = the field is absent.
  const ThriftValue* find(int field) const;
  /// Returns the number of a field. Errors ("data"): the field is absent.
  int64_t number_of(int field) const;
  /// Returns the number of a field, or `otherwise` if the field is absent.
  int64_t number_of(int field, int64_t otherwise) const;
};

/// Takes a struct from the front of `bytes`.
/// Errors ("data"): the bytes end within the struct or are no struct; values are nested more than 16 deep; there are
///                  more than four million values. Cost: about 80 bytes of memory per value.
ThriftValue read_thrift(std::string_view& bytes);

}  // namespace colossal::formats
