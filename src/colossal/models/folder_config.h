// The config.json of a Hugging Face folder, as a family reads it. A key that affects results is either read, or must
// have the one value with which it has no effect. Otherwise it is refused by name.
//
//   const FolderConfig c(json, "LLaMA");
//   s.hidden = c.at<int64_t>("hidden_size");
//   s.norm_epsilon = c.value("rms_norm_eps", 1e-6);                   // of a key that is null or not there
//   c.must_be("is_decoder", false);                                   // or null, or not there
//
// Keys that the family's config class in transformers does not know are ignored, as they are there.
#pragma once
#include <concepts>
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/base/json.h"

namespace colossal::models {

struct ModelShape;

/// A reader for one config.json, with checked conversions.
class FolderConfig {
 public:
  /// Reads the config of a folder of `family`, a name for messages. Errors ("model"): features that no family here
  /// computes: quantized weights (quantization_config), removed heads (pruned_heads), layers that differ
  /// (per_layer_config), attention to an encoder (add_cross_attention).
  FolderConfig(const nlohmann::json& config, std::string family);

  const std::string& family() const { return family_; }
  /// Returns true if the key exists and is neither null nor an empty object.
  bool has(const char* key) const {
    const auto found = config_.find(key);
    return found != config_.end() && !found->is_null() && !(found->is_object() && found->empty());
  }
  /// Returns true if the key exists and is null, for keys whose absence has another meaning.
  bool says_null(const char* key) const { return config_.contains(key) && config_[key].is_null(); }
  /// The next three return the value of a key. An integer may be written with a decimal point, as 64.0.
  /// Errors ("model"), with key and value: a value of another type; a number that does not fit an int64_t. If at() does
  /// not find the key it throws the exception of nlohmann::json, which the registry turns into a message.
  template <class T>
  T at(const char* key) const {
    return as<T>(key, config_.at(key));
  }
  template <class T>
  T value(const char* key, T otherwise) const {
    return has(key) ? as<T>(key, config_[key]) : otherwise;
  }
  std::string value(const char* key, const char* otherwise) const { return value(key, std::string(otherwise)); }
  /// Returns the object under `key`, or an empty one if there is none. Messages call its keys `key.name`.
  FolderConfig object(const char* key) const;

  /// Errors ("model"): a key that exists and is not null, with a value that is not allowed.
  void must_be(const char* key, const nlohmann::json& allowed) const { must_be_one_of(key, {allowed}); }
  void must_be_one_of(const char* key, const std::vector<nlohmann::json>& allowed) const;
  /// Does the same for a key that only training reads, and says how to train without it. A family calls it in
  /// HuggingFace::check_training. `otherwise` = the value if the key is absent or null; null = any passes.
  void must_be_to_train(const char* key, const nlohmann::json& allowed, const nlohmann::json& otherwise = {}) const;

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
  [[noreturn]] void refuse(const char* key, const nlohmann::json& value, const std::string& wanted,
                           const char* remedy = "") const;

  nlohmann::json config_;
  std::string family_, prefix_;
};

/// Refuses attention_dropout to train; a family may set it as its HuggingFace::check_training.
void refuse_attention_dropout(const FolderConfig& config, const ModelShape& shape);

/// Writes null for the pad, bos and eos token ids if the vocabulary has no id `largest`. transformers' config class
/// would otherwise assume default ids up to `largest`, and would pad or begin with rows that the embedding does not
/// have.
void write_tokens(nlohmann::json& config, int64_t vocabulary, int64_t largest);

}  // namespace colossal::models
