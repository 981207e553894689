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
#include <concepts>
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
  /// An integer may be written with a point, as 64.0. Errors ("model") of these three, with key and value: one of
  /// another type, and a number that is no int64_t where one is wanted. Of a key that at() does not find:
  /// nlohmann::json's, which the registry words.
  template <class T>
  T at(const char* key) const {
    return as<T>(key, config_.at(key));
  }
  template <class T>
  T value(const char* key, T otherwise) const {
    return has(key) ? as<T>(key, config_[key]) : otherwise;
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

  template <class T>
  T as(const char* key, const nlohmann::json& value) const {
    if constexpr (std::integral<T> && !std::same_as<T, bool>) {
      return static_cast<T>(integer(key, value));
    } else {
      try {
        return value.get<T>();
      } catch (const nlohmann::json::exception&) {
        refuse(key, value, "of the type that the family's config class defines");
      }
    }
  }
  int64_t integer(const char* key, const nlohmann::json& value) const;
  [[noreturn]] void refuse(const char* key, const nlohmann::json& value, const std::string& wanted) const;

  nlohmann::json config_;
  std::string family_, prefix_;
};

/// Where transformers' config class gives token ids (pad, bos, eos) up to `largest` to a folder that says none, and the
/// vocabulary has no such token, writes that there are none: it would pad or begin with rows that the embedding lacks.
void write_tokens(nlohmann::json& config, int64_t vocabulary, int64_t largest);

}  // namespace colossal::models
