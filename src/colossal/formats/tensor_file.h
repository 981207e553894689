// Files of tensors with strides: the interface that the readers of NumPy's and PyTorch's files have.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace colossal::formats {

/// A type of elements, in the order of the host (little-endian).
enum class ElementType { F64, F32, F16, BF16, I64, I32, I16, I8, U64, U32, U16, U8, Bool, F8E4M3, F8E5M2, C64 };

/// Returns the bytes of an element.
int64_t bytes_of(ElementType type);

/// A tensor of a file. Its elements lie in a storage, a run of bytes that several tensors may share.
struct StridedTensor {
  ElementType type = ElementType::F32;
  std::vector<int64_t> shape{}, strides{};  ///< strides in elements, at least 0
  uint64_t storage = 0;                     ///< number of the storage in the file
  uint64_t begin = 0;                       ///< bytes of the storage before the first element

  /// Returns the elements from the first to the last one in the storage, gaps included; 0 = the tensor is empty.
  int64_t span() const;
};

/// Sets the strides of a tensor whose elements lie without gaps, the last dimension's fastest, or if `fortran`, the
/// first dimension's.
void set_dense_strides(StridedTensor& tensor, bool fortran);

/// Checks that a tensor of a file that is not trusted lies within its storage of `storage_bytes`, so that span() and
/// reading cannot overflow. `component` and `where` begin the message.
/// Errors (`component`): more than 64 dimensions; a negative size or stride; more than 2^63 bytes; an end outside the
///         storage; more than 2^20 elements, and more than the storage has, by strides of 0.
void check_tensor(const StridedTensor& tensor, uint64_t storage_bytes, const char* component, const std::string& where);

/// An open file.
/// Thread safety: const members may be called from several threads.
class TensorFile {
 public:
  virtual ~TensorFile() = default;
  virtual const std::string& path() const = 0;
  /// Returns the tensors by their names. All have passed check_tensor().
  virtual const std::map<std::string, StridedTensor>& tensors() const = 0;
  /// Copies span() elements of a tensor to `out`, from its first on. `tensor`: one of tensors(), or a part of one.
  /// Errors: damaged bytes; the file cannot be read.
  virtual void read(const StridedTensor& tensor, void* out) const = 0;
};

}  // namespace colossal::formats
