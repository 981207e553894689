#include "colossal/formats/tensor_file.h"

#include <algorithm>

#include "colossal/base/error.h"

namespace colossal::formats {

int64_t bytes_of(ElementType type) {
  switch (type) {
    case ElementType::F64:
    case ElementType::I64:
    case ElementType::U64:
    case ElementType::C64:
      return 8;
    case ElementType::F32:
    case ElementType::I32:
    case ElementType::U32:
      return 4;
    case ElementType::F16:
    case ElementType::BF16:
    case ElementType::I16:
    case ElementType::U16:
      return 2;
    default:
      return 1;
  }
}

int64_t StridedTensor::span() const {
  int64_t last = 0;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 0) return 0;
    last += (shape[d] - 1) * strides[d];
  }
  return last + 1;
}

void set_dense_strides(StridedTensor& tensor, bool fortran) {
  const size_t dimensions = tensor.shape.size();
  tensor.strides.assign(dimensions, 1);
  int64_t stride = 1;
  for (size_t i = 0; i < dimensions; ++i) {
    const size_t d = fortran ? i : dimensions - 1 - i;
    tensor.strides[d] = stride;
    // check_tensor() refuses sizes that overflow; until then the product only must not be undefined
    if (__builtin_mul_overflow(stride, std::max<int64_t>(1, tensor.shape[d]), &stride)) stride = INT64_MAX;
  }
}

void check_tensor(const StridedTensor& tensor, uint64_t storage_bytes, const char* component,
                  const std::string& where) {
  constexpr size_t kMaxDimensions = 64;
  constexpr int64_t kMaxRepeated = 1 << 20;
  require(tensor.shape.size() <= kMaxDimensions && tensor.shape.size() == tensor.strides.size(), component, where,
          " must have at most ", kMaxDimensions, " dimensions and a stride for each: got ", tensor.shape.size(),
          " sizes and ", tensor.strides.size(), " strides");
  const int64_t bytes = bytes_of(tensor.type);
  int64_t numbers = 1, last = 0;
  bool fits = true, empty = false;
  for (size_t d = 0; d < tensor.shape.size(); ++d) {
    const int64_t size = tensor.shape[d], stride = tensor.strides[d];
    require(size >= 0 && stride >= 0, component, where, " must have sizes and strides of at least 0: got ", size,
            " and ", stride);
    int64_t step = 0;
    empty = empty || size == 0;
    fits = fits && !__builtin_mul_overflow(numbers, std::max<int64_t>(1, size), &numbers) &&
           !__builtin_mul_overflow(std::max<int64_t>(1, size) - 1, stride, &step) &&
           !__builtin_add_overflow(last, step, &last);
  }
  int64_t end = 0;
  fits = fits && !__builtin_mul_overflow(numbers, bytes, &end) && !__builtin_add_overflow(last, 1, &end) &&
         !__builtin_mul_overflow(end, bytes, &end);
  require(fits, component, where, ": its shape overflows");
  if (empty) return;
  require(tensor.begin <= storage_bytes && static_cast<uint64_t>(end) <= storage_bytes - tensor.begin, component, where,
          " must be within its storage: got ", end, " bytes from byte ", tensor.begin, " on, of ", storage_bytes,
          " (truncated file?)");
  require(numbers <= kMaxRepeated || static_cast<uint64_t>(numbers) <= storage_bytes / static_cast<uint64_t>(bytes),
          component, where, " must not have more elements than its storage: got ", numbers);
}

}  // namespace colossal::formats
