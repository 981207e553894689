#include "colossal/checkpoint/hugging_face/weight_files.h"

#include <cstdio>
#include <filesystem>
#include <regex>
#include <set>

#include "colossal/base/file.h"
#include "colossal/base/json.h"
#include "colossal/checkpoint/box.h"

namespace colossal::checkpoint {
namespace {

namespace fs = std::filesystem;

int64_t bytes_of(const TensorEntry& entry) {
  return Box{{}, entry.shape}.numel() * static_cast<int64_t>(c10::elementSize(entry.dtype));
}

void remove_stale(const std::string& folder, const std::vector<WeightFile>& files) {
  static const std::regex kWeights(R"(model(-\d{5,}-of-\d{5,})?\.safetensors)");
  std::set<std::string> written;
  for (const WeightFile& file : files) written.insert(file.file);
  std::vector<fs::path> stale;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (std::regex_match(name, kWeights) && written.count(name) == 0) stale.push_back(entry.path());
    if (name == "model.safetensors.index.json" && files.size() == 1) stale.push_back(entry.path());
  }
  for (const fs::path& path : stale) fs::remove(path);
}

void write_index(const std::string& folder, const std::vector<WeightFile>& files) {
  nlohmann::json map = nlohmann::json::object();
  int64_t total = 0;
  for (const WeightFile& file : files) {
    for (const TensorEntry& entry : file.entries) {
      map[entry.name] = file.file;
      total += bytes_of(entry);
    }
  }
  const nlohmann::json index = {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
  write_file(folder + "/model.safetensors.index.json", index.dump(2) + "\n");
}

}  // namespace

std::vector<WeightFile> plan_weight_files(const std::vector<TensorEntry>& entries, int64_t max_file_bytes) {
  std::vector<WeightFile> files(1);
  int64_t bytes = 0;
  for (const TensorEntry& entry : entries) {
    const int64_t size = bytes_of(entry);
    if (!files.back().entries.empty() && bytes + size > max_file_bytes) {
      files.emplace_back();
      bytes = 0;
    }
    bytes += size;
    files.back().entries.push_back(entry);
  }
  for (size_t i = 0; i < files.size(); ++i) {
    char name[64] = "model.safetensors";
    if (files.size() > 1) std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, files.size());
    files[i].file = name;
    sort_entries(files[i].entries);
  }
  return files;
}

void finish_weight_files(const std::string& folder, const std::vector<WeightFile>& files) {
  if (files.size() > 1) write_index(folder, files);
  remove_stale(folder, files);
}

}  // namespace colossal::checkpoint
