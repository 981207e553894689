// The safetensors files of a Hugging Face folder that is being written.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/checkpoint/safetensors.h"

namespace colossal::checkpoint {

/// A file of the folder and its tensors, in the order of the file (sort_entries()).
struct WeightFile {
  std::string file;
  std::vector<TensorEntry> entries;
};

/// Assigns tensors to files in the order given. A file has at most `max_file_bytes` bytes but at least one tensor. File
/// names are those of transformers.
std::vector<WeightFile> plan_weight_files(const std::vector<TensorEntry>& entries, int64_t max_file_bytes);

/// Ends the writing of `files`, which are complete: writes the index if there are several, and removes weight files of
/// an earlier export, because readers would take them for a part of this one. Errors ("file"): a failed write.
void finish_weight_files(const std::string& folder, const std::vector<WeightFile>& files);

}  // namespace colossal::checkpoint
