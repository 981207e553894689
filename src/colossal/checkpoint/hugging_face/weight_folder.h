// The safetensors files of a Hugging Face folder: reads them as one table of tensors, and plans and ends their writing.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "colossal/checkpoint/safetensors.h"
#include "colossal/checkpoint/weight_source.h"

namespace colossal::checkpoint {

/// Reads model.safetensors, or if it is missing, model.safetensors.index.json and the files that it names. Folders of
/// diffusers have diffusion_pytorch_model in place of model. A folder that has only the variant fp16 of these files,
/// such as model.fp16.safetensors, is read from it. `folder` may also be the path of one safetensors file.
///
/// Errors: throws Error("hugging face", ...) if all of these files are missing, if the index is malformed, and if two
///         files hold the same name. The index must not name a file outside the folder, or a tensor that its file does
///         not hold. Pickles (.bin, .ckpt, .pt, .pth) are refused, because reading them can run code. Errors of
///         SafetensorsReader.
class WeightFolder final : public WeightSource {
 public:
  explicit WeightFolder(const std::string& folder);
  at::Tensor tensor(const std::string& name) const override { return owners_.at(name)->tensor(name); }
  void leave(const std::string& name) const override { owners_.at(name)->leave(name); }
  bool can_wait(const std::string& name) const override { return owners_.at(name)->is_in_memory(name); }
  /// Returns the files, keyed by path.
  const std::map<std::string, std::unique_ptr<SafetensorsReader>>& readers() const { return readers_; }

 private:
  void open(const std::string& path);
  void open_index(const std::string& folder, const std::string& path);

  std::map<std::string, std::unique_ptr<SafetensorsReader>> readers_;
  std::map<std::string, const SafetensorsReader*> owners_;
};

/// Returns true if a folder has one of the files that WeightFolder reads.
bool has_weight_files(const std::string& folder);

/// Returns the file of each tensor that an index lists. Errors ("hugging face"): the index is malformed, or names a
/// file outside its folder.
std::map<std::string, std::string> read_weight_map(const std::string& path);

// The files of a folder that is being written.

/// A file of the folder and its tensors, in the order of the file (sort_entries()).
struct WeightFile {
  std::string file;
  std::vector<TensorEntry> entries;
};

/// Assigns tensors to files in the order given. A file has at most `max_file_bytes` bytes but at least one tensor. File
/// names are those of transformers, which begin with `stem`; diffusers' begin with "diffusion_pytorch_model".
std::vector<WeightFile> plan_weight_files(const std::vector<TensorEntry>& entries, int64_t max_file_bytes,
                                          const std::string& stem = "model");

/// Ends the writing of `files`, which are complete: writes the index if there are several, and removes weight files of
/// an earlier export, because readers would take them for a part of this one. Errors ("file"): a failed write.
void finish_weight_files(const std::string& folder, const std::vector<WeightFile>& files,
                         const std::string& stem = "model");

}  // namespace colossal::checkpoint
