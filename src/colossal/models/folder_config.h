// config.json of a Hugging Face folder, as a family reads it. What changes numbers is either read or must have the one
// value with which it changes none: then it is refused by its name.
//
//   const FolderConfig c(json, "LLaMA");
//   s.hidden = c.at<int64_t>("hidden_size");
//   s.norm_epsilon = c.value("rms_norm_eps", 1e-6);                   // of a key that is null or not there
//   c.must_be("attention_dropout", 0);                                // or null, or not there
//
// Keys that transformers' class of the family does not know pass, as they do there.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace colossal::models {

class FolderConfig {
 public:
  /// Of a folder of `family`, as messages call it. Errors ("model"), of what no family of ours computes: quantized
  /// weights (quantization_config), removed heads (pruned_heads), layers that differ (per_layer_config), attention to
  /// an encoder (add_cross_attention).
  FolderConfig(const nlohmann::json& config, std::string family);

  const std::string& family() const { return family_; }
  /// There, and neither null nor an empty object.
  bool has(const char* key) const {
    const auto found = config_.find(key);
    return found != config_.end() && !found->is_null() && !(found->is_object() && found->empty());
  }
  /// There, and null, where absent would be something else.
  bool says_null(const char* key) const { return config_.contains(key) && config_[key].is_null(); }
  /// Errors of these three: nlohmann::json's, which the registry words.
  template <class T>
  T at(const char* key) const {
    return config_.at(key).get<T>();
  }
  template <class T>
  T value(const char* key, T otherwise) const {
    return has(key) ? config_[key].get<T>() : otherwise;
  }
  std::string value(const char* key, const char* otherwise) const { return value(key, std::string(otherwise)); }
  /// The object under `key`, whose keys messages call `key.name`; an empty one where there is none.
  FolderConfig object(const char* key) const;

  /// Errors ("model"): a key that is there, not null and none of `allowed`.
  void must_be(const char* key, const nlohmann::json& allowed) const { must_be_one_of(key, {allowed}); }
  void must_be_one_of(const char* key, const std::vector<nlohmann::json>& allowed) const;

 private:
  FolderConfig(nlohmann::json config, std::string family, std::string prefix)
      : config_(std::move(config)), family_(std::move(family)), prefix_(std::move(prefix)) {}

  nlohmann::json config_;
  std::string family_, prefix_;
};

}  // namespace colossal::models
