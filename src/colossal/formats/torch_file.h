// Files of torch.save: checkpoints and pytorch_model.bin, in the zip form and in the form that PyTorch had before 1.6.
// No code of a file is run (pickle.h).
//
//   const TorchFile file("pytorch_model.bin");
//   const StridedTensor& weight = file.tensors().at("transformer.wte.weight");
//   std::vector<char> elements(weight.span() * bytes_of(weight.type));
//   file.read(weight, elements.data());
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "colossal/formats/tensor_file.h"
#include "colossal/formats/zip_file.h"

namespace colossal {
class MappedFile;
}

namespace colossal::formats {

struct TorchTensor;

/// Returns true if `path` is a regular file that begins as torch.save's do: a zip file with the member data.pkl, or the
/// older form. A file that cannot be read, and any zip file in a build without libzip, gives false.
bool is_torch_file(const std::string& path);

/// An open file. Its tensors are those of read_torch_table(), which says where in the file weights may be; several may
/// share a storage.
///
/// Errors: those of ZipFile, read_pickle() and read_torch_table(). Throws Error("torch file", path and rule) for other
///         files, TorchScript, numbers that are not little-endian, a storage that is missing or has another size than
///         its pickle says, and a tensor that check_tensor() refuses.
/// Cost: the constructor reads the pickle, of at most 256 MiB. In the older form the file is mapped.
class TorchFile final : public TensorFile {
 public:
  explicit TorchFile(const std::string& path);
  ~TorchFile() override;
  const std::string& path() const override { return path_; }
  const std::map<std::string, StridedTensor>& tensors() const override { return tensors_; }
  void read(const StridedTensor& tensor, void* out) const override;

 private:
  void open_zip();
  void open_old();
  void add(const std::string& name, const TorchTensor& tensor, uint64_t storage, uint64_t storage_bytes);

  std::string path_;
  std::unique_ptr<ZipFile> zip_;  // or, in the older form, file_ and the offset of each storage
  std::shared_ptr<const MappedFile> file_;
  std::vector<uint64_t> offsets_;
  std::map<std::string, StridedTensor> tensors_;
};

}  // namespace colossal::formats
