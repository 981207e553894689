#include "colossal/checkpoint/hugging_face/weight_folder.h"

#include <ATen/ATen.h>

#include <cstdio>
#include <filesystem>
#include <optional>
#include <regex>
#include <set>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"
#include "colossal/checkpoint/box.h"

namespace colossal::checkpoint {
namespace {

constexpr char kFolderComponent[] = "hugging face";

/// Returns true for a plain file name. A downloaded index must not make us read files outside the folder.
bool is_plain_name(const std::string& file) {
  return !file.empty() && file.find('/') == std::string::npos && file.find('\\') == std::string::npos &&
         file.find('\0') == std::string::npos && file != "." && file != "..";
}

namespace fs = std::filesystem;

/// Returns true for the names of files that may be pickles.
bool is_pickle_name(const fs::path& file) {
  const std::string ending = file.extension().string();
  return ending == ".bin" || ending == ".ckpt" || ending == ".pt" || ending == ".pth";
}

/// Returns that pickles, `pattern`, are not read, with the command that converts them to the safetensors file `to`.
std::string refusal_of(const std::string& pattern, const std::string& to) {
  return concat(
      " is not read in their place; convert to safetensors, with the packages torch and ", "safetensors: python3 -c '",
      "import glob, torch; from safetensors.torch import save_file; tensors = {}; ",
      "[tensors.update((t := torch.load(file, map_location=\"cpu\", weights_only=True)).get(\"state_dict\", t)) ",
      "for file in glob.glob(\"", pattern, "\")]; ",
      "save_file({name: t.clone().contiguous() for name, t in tensors.items()}, ", "\"", to,
      "\", {\"format\": \"pt\"})'");
}

/// Returns the remedy for a folder without safetensors.
std::string remedy_of(const std::string& folder) {
  std::error_code failed;
  std::string pickle;  // the first by name
  for (fs::directory_iterator entry(folder, failed), end; !failed && entry != end; entry.increment(failed)) {
    const std::string name = entry->path().filename().string();
    const bool is_weights = is_pickle_name(entry->path()) && !name.starts_with("training_args");
    if (is_weights && (pickle.empty() || name < pickle)) pickle = name;
  }
  if (pickle.empty()) return "; download it, or convert the weights to safetensors";
  for (const auto& [stem, to] :
       {std::pair("pytorch_model", "model"), std::pair("diffusion_pytorch_model", "diffusion_pytorch_model")})
    if (pickle.starts_with(stem))
      return concat("; its ", stem, "*.bin",
                    refusal_of(concat(folder, "/", stem, "*.bin"), concat(folder, "/", to, ".safetensors")));
  return concat("; its ", printable(pickle), refusal_of(folder + "/" + pickle, folder + "/model.safetensors"));
}

constexpr char kIndexEnd[] = ".safetensors.index.json";

/// Returns the path of the weights of a folder, a safetensors file or an index; none = it has neither.
std::optional<std::string> find_weights(const std::string& folder) {
  std::error_code none;
  for (const std::string variant : {"", ".fp16"})
    for (const char* stem : {"model", "diffusion_pytorch_model"}) {
      const std::string file = concat(folder, "/", stem);
      // diffusers has written the variant of an index at two places of its name
      for (const std::string& path :
           {concat(file, variant, ".safetensors"), concat(file, ".safetensors.index", variant, ".json"),
            concat(file, variant, kIndexEnd)})
        if (fs::exists(path, none)) return path;
    }
  return {};
}

/// Returns find_weights(). Errors ("hugging face"): the folder has neither.
std::string weights_in(const std::string& folder) {
  if (std::optional<std::string> path = find_weights(folder)) return std::move(*path);
  throw Error(kFolderComponent,
              concat(folder, ": has neither model.safetensors nor its index file", remedy_of(folder)));
}

int64_t bytes_of(const TensorEntry& entry) {
  return Box{{}, entry.shape}.numel() * static_cast<int64_t>(c10::elementSize(entry.dtype));
}

void remove_stale(const std::string& folder, const std::vector<WeightFile>& files, const std::string& stem) {
  const std::regex weights(stem + R"((-\d{5,}-of-\d{5,})?\.safetensors)");
  std::set<std::string> written;
  for (const WeightFile& file : files) written.insert(file.file);
  std::vector<fs::path> stale;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (std::regex_match(name, weights) && written.count(name) == 0) stale.push_back(entry.path());
    if (name == stem + kIndexEnd && files.size() == 1) stale.push_back(entry.path());
  }
  for (const fs::path& path : stale) fs::remove(path);
}

void write_index(const std::string& folder, const std::vector<WeightFile>& files, const std::string& stem) {
  nlohmann::json map = nlohmann::json::object();
  int64_t total = 0;
  for (const WeightFile& file : files) {
    for (const TensorEntry& entry : file.entries) {
      map[entry.name] = file.file;
      total += bytes_of(entry);
    }
  }
  const nlohmann::json index = {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
  write_file(concat(folder, "/", stem, kIndexEnd), index.dump(2) + "\n");
}

}  // namespace

WeightFolder::WeightFolder(const std::string& folder) {
  std::error_code none;
  const bool is_file = fs::is_regular_file(folder, none);
  require(!is_file || !is_pickle_name(folder), kFolderComponent, folder, " must have safetensors: a pickle",
          refusal_of(folder, fs::path(folder).replace_extension(".safetensors").string()));
  const std::string path = is_file ? folder : weights_in(folder);
  path.ends_with(".json") ? open_index(folder, path) : open(path);
}

void WeightFolder::open(const std::string& path) {
  const auto& reader = readers_[path] = std::make_unique<SafetensorsReader>(path);
  for (const auto& [name, entry] : reader->entries()) {
    require(entries_.emplace(name, &entry).second, kFolderComponent, path, ": ", printable(name),
            " is in another file too");
    owners_[name] = reader.get();
  }
}

void WeightFolder::open_index(const std::string& folder, const std::string& path) {
  for (const auto& [name, file] : read_weight_map(path)) {
    const std::string where = folder + "/" + file;
    if (readers_.count(where) == 0) open(where);
    require(readers_.at(where)->contains(name), kFolderComponent, path, ": ", where, " does not hold ",
            printable(name));
  }
}

bool has_weight_files(const std::string& folder) { return find_weights(folder).has_value(); }

std::map<std::string, std::string> read_weight_map(const std::string& path) {
  const nlohmann::json index = read_json_object(path, kFolderComponent);
  const auto map = index.find("weight_map");
  require(map != index.end() && map->is_object(), kFolderComponent, path, ": weight_map must be a JSON object");
  std::map<std::string, std::string> files;
  for (const auto& [name, file] : map->items()) {
    require(file.is_string() && is_plain_name(file.get<std::string>()), kFolderComponent, path, ": ", printable(name),
            " must be in a file of this folder: got ", printable(file.dump()));
    files[name] = file.get<std::string>();
  }
  return files;
}

std::vector<WeightFile> plan_weight_files(const std::vector<TensorEntry>& entries, int64_t max_file_bytes,
                                          const std::string& stem) {
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
    char number[64] = "";
    if (files.size() > 1) std::snprintf(number, sizeof number, "-%05zu-of-%05zu", i + 1, files.size());
    files[i].file = stem + number + ".safetensors";
    sort_entries(files[i].entries);
  }
  return files;
}

void finish_weight_files(const std::string& folder, const std::vector<WeightFile>& files, const std::string& stem) {
  if (files.size() > 1) write_index(folder, files, stem);
  remove_stale(folder, files, stem);
}

}  // namespace colossal::checkpoint
