// NumPy's files: the header of one array (.npy), and a zip file of arrays (.npz).
//
//   const NpzFile file("params_model_1_ptm.npz");
//   const std::string head = "alphafold/alphafold_iteration/distogram_head/half_logits";
//   const StridedTensor& weights = file.tensors().at(head + "//weights");
//
// See: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "colossal/formats/tensor_file.h"
#include "colossal/formats/zip_file.h"

namespace colossal::formats {

/// Reads the header of an array from `start`, the first bytes of a file: all of them, or at least 64 KiB. `begin` of
/// the result is the size of the header, its storage 0. The caller calls check_tensor() with the size of the file.
/// Errors ("npy", `where` and rule): bytes that do not begin as a file of version 1, 2 or 3; a header that is no table
///         of descr, fortran_order and shape, or longer than `start`; elements that are big-endian, objects (which are
///         pickles), texts, records or of another type than those of ElementType, of which BF16 and F8 are not NumPy's.
StridedTensor read_npy_header(std::string_view start, const std::string& where);

/// An open .npz file, of numpy.savez or numpy.savez_compressed. Tensors have the names of its members without ".npy".
///
/// Errors: those of ZipFile; Error("npy", path, array and rule) for a member that is no array or that
///         read_npy_header() or check_tensor() refuse, and for bytes after its elements.
/// Cost: the constructor reads the header of each array. read() of a compressed array decompresses what is before.
class NpzFile final : public TensorFile {
 public:
  explicit NpzFile(const std::string& path);
  const std::string& path() const override { return file_.path(); }
  const std::map<std::string, StridedTensor>& tensors() const override { return tensors_; }
  void read(const StridedTensor& tensor, void* out) const override;

 private:
  ZipFile file_;
  std::map<std::string, StridedTensor> tensors_;
};

}  // namespace colossal::formats
