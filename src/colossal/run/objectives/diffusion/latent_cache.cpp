#include "colossal/run/objectives/diffusion/latent_cache.h"

#include <filesystem>
#include <utility>

#include "colossal/base/checksum.h"
#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"
#include "colossal/models/caption_parts.h"

namespace colossal::run {
namespace {

namespace fs = std::filesystem;

constexpr char kShardEnd[] = ".safetensors", kNoteEnd[] = ".json", kStates[] = "text";

std::string json_of(const LatentCacheKey& key) {
  return nlohmann::json{{"vae", key.vae}, {"text_encoder", key.text_encoder}, {"dtype", key.dtype}}.dump();
}

}  // namespace

LatentCache::LatentCache(std::string folder, LatentCacheKey key) : folder_(std::move(folder)), key_(json_of(key)) {
  refresh();
}

std::string LatentCache::name_of(const std::string& caption) { return "caption-" + checksum(caption); }

std::map<std::string, at::Tensor> LatentCache::tensors_of(const std::string& caption, const tensor::Batch& told) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [field, value] : told.fields())
    tensors[name_of(caption) + (field == kStates ? "" : "-" + field)] = value.tensor[0];
  return tensors;
}

tensor::Batch LatentCache::caption(const std::string& text) const {
  const std::string name = name_of(text);
  const auto find = [&](const char* field) {
    const std::string whole = concat(name, "-", field);
    return has(whole) ? at(whole).unsqueeze(0) : at::Tensor();
  };
  return models::caption_batch(at(name).unsqueeze(0), find("pooled"), find("text_mask"));
}

void LatentCache::refresh() {
  std::error_code none;
  for (fs::directory_iterator entry(folder_, none), end; !none && entry != end; entry.increment(none)) {
    const std::string note = entry->path().string();
    if (!note.ends_with(kNoteEnd)) continue;
    const std::string path = note.substr(0, note.size() - (sizeof kNoteEnd - 1)) + kShardEnd;
    if (shards_.contains(path)) continue;
    try {
      const nlohmann::json about = read_json_object(note, "data");
      if (about.value("key", "") != key_ || about.value("checksum", "") != file_checksum(path)) continue;
      auto reader = std::make_unique<checkpoint::SafetensorsReader>(path);
      for (const auto& [name, tensor] : reader->entries()) owners_[name] = reader.get();
      shards_[path] = std::move(reader);
    } catch (const Error&) {
      continue;  // a damaged shard; its pictures are encoded again
    } catch (const nlohmann::json::exception&) {
      continue;
    }
  }
}

at::Tensor LatentCache::at(const std::string& name) const {
  const auto owner = owners_.find(name);
  require(owner != owners_.end(), "data", "the latents in ", folder_, " must have ", name,
          ": they do not; start the run again, which encodes what is missing");
  return owner->second->tensor(name);
}

void LatentCache::add(const std::map<std::string, at::Tensor>& tensors) const {
  if (tensors.empty()) return;
  create_folder(folder_);
  std::string names;
  for (const auto& [name, tensor] : tensors) names += name + "\n";
  const std::string path = concat(folder_, "/", checksum(names + key_));
  checkpoint::write_safetensors(path + kShardEnd, tensors);
  const nlohmann::json note{{"key", key_}, {"checksum", file_checksum(path + kShardEnd)}};
  write_file(path + kNoteEnd, note.dump() + "\n");
}

}  // namespace colossal::run
