// The config.json of a Hugging Face folder, as a family reads and writes it. A key that affects results is either read,
// or must have the one value with which it has no effect. Otherwise it is refused by name.
//
// A family names each key once, in a function of rows. A row says which member has the value of the key, and its rule.
// Reading and writing follow from the rows:
//
//   void keys(FolderKeys& k, ModelShape& s, MyLmSizes& own) {
//     k.required("vocab_size", s.vocabulary);
//     k.required("hidden_size", s.hidden, "n_embed");                 // some folders call it n_embed
//     k.required("num_hidden_layers", s.layers);
//     k.required("num_attention_heads", s.heads);
//     if (k.reads()) s = gpt_layout(s.vocabulary, s.hidden, s.layers, s.heads);  // sizes that follow from others
//     k.optional("intermediate_size", s.ffn, s.ffn);                  // the default of the family's config class
//     k.optional("layer_norm_eps", s.norm_epsilon, 1e-5);
//     k.or_null("sliding_window", own.window, 4096);                  // null = 0
//     k.fixed("parallel_residual", true);                             // other values are refused
//     k.only("is_decoder", false);                                    // so are they, but the key is not written
//     k.written("attention_dropout", 0.0);                            // not read
//   }
//
//   ModelShape from_json(const nlohmann::json& j) { return read_folder(FolderConfig(j, "MyLM"), keys); }
//
//   nlohmann::json to_json(const ModelShape& s) { return write_folder("my_lm", "MyLMForCausalLM", s, keys); }
//
// A key that no row can describe is read from FolderKeys::config(), such as one with a meaning that depends on others.
// Keys that the family's config class in transformers does not know are ignored, as they are there.
#pragma once
#include <concepts>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "colossal/base/json.h"
#include "colossal/models/shape.h"

namespace colossal::models {

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

/// The rows of a family's config.json. The visitor either reads a folder, so that a row sets its member, or writes one,
/// so that a row writes its member. A row that reads has the errors of FolderConfig.
class FolderKeys {
 public:
  /// Reads `from`, which must outlive the visitor.
  explicit FolderKeys(const FolderConfig& from) : from_(&from) {}
  explicit FolderKeys(const FolderConfig&&) = delete;
  /// Writes into `to`, which must outlive the visitor.
  explicit FolderKeys(nlohmann::json& to) : to_(&to) {}

  bool reads() const { return from_ != nullptr; }
  bool writes() const { return to_ != nullptr; }
  /// Returns the config that is read, for keys that no row can describe. The visitor must read.
  const FolderConfig& config() const { return *from_; }

  /// Returns the name of the family of the folder that is read, for messages; "" of one that is written.
  std::string family() const { return reads() ? from_->family() : ""; }

  /// A key that every folder has (FolderConfig::at). `other`: a name that folders may have instead and that takes
  /// precedence; null = none. It is never written.
  template <class T>
  void required(const char* key, T& member, const char* other = nullptr) {
    if (reads())
      member = from_->at<T>(other && from_->has(other) ? other : key);
    else
      (*to_)[key] = member;
  }
  /// A key with a default: `otherwise`, the value in the family's config class, if the key is null or not there. It is
  /// written always.
  template <class T>
  void optional(const char* key, T& member, const std::type_identity_t<T>& otherwise) {
    if (reads())
      member = from_->value(key, otherwise);
    else
      (*to_)[key] = member;
  }
  /// Does the same, but writes only a value that is not the default.
  template <class T>
  void omitted(const char* key, T& member, const std::type_identity_t<T>& otherwise) {
    if (reads() || member != otherwise) optional(key, member, otherwise);
  }
  /// A key whose null is 0 here. `otherwise`: the value if the key is not there. A value of 0 or less is written as
  /// null.
  template <class T>
  void or_null(const char* key, T& member, const std::type_identity_t<T>& otherwise) {
    if (reads())
      member = from_->says_null(key) ? 0 : from_->value(key, otherwise);
    else
      (*to_)[key] = member > 0 ? nlohmann::json(member) : nlohmann::json();
  }
  /// A key with a default and few values; others are refused.
  void choice(const char* key, std::string& member, const std::vector<nlohmann::json>& allowed,
              const std::string& otherwise) {
    if (reads()) from_->must_be_one_of(key, allowed);
    optional(key, member, otherwise);
  }
  /// A key with one value; others are refused (FolderConfig::must_be).
  void fixed(const char* key, const nlohmann::json& value) {
    only(key, value);
    written(key, value);
  }
  /// Does the same for a key that is not written, because another row writes it or its default is that value.
  void only(const char* key, const nlohmann::json& value) {
    if (reads()) from_->must_be(key, value);
  }
  /// A key that is not read, because it has no effect here or follows from other keys.
  void written(const char* key, const nlohmann::json& value) {
    if (writes()) (*to_)[key] = value;
  }

 private:
  const FolderConfig* from_ = nullptr;
  nlohmann::json* to_ = nullptr;
};

/// Checks sizes that rows have read, by the names of their keys, before others are computed from them. It checks
/// nothing if the rows write. Errors ("model"): a size below 1 or above 2^20.
void check_sizes_read(const FolderKeys& keys, const std::vector<std::pair<const char*, int64_t>>& sizes);

/// Returns the shape that the rows `keys` read from a folder.
ModelShape read_folder(const FolderConfig& config, const std::function<void(FolderKeys&, ModelShape&)>& keys);
/// Returns the config.json that the rows `keys` write for a folder of `model_type`, which the class `architecture` of
/// transformers reads. The rows get a copy of the shape, so they may change it. A shape with outputs gets the class
/// ...ForSequenceClassification of the family, with as many labels.
nlohmann::json write_folder(const char* model_type, const char* architecture, ModelShape shape,
                            const std::function<void(FolderKeys&, ModelShape&)>& keys);

/// Do the same for a family with own sizes.
template <class Own>
ModelShape read_folder(const FolderConfig& config, void (*keys)(FolderKeys&, ModelShape&, Own&)) {
  return read_folder(config, [keys](FolderKeys& k, ModelShape& shape) {
    Own own;
    keys(k, shape, own);
    shape.own = own;
  });
}
template <class Own>
nlohmann::json write_folder(const char* model_type, const char* architecture, const ModelShape& shape,
                            void (*keys)(FolderKeys&, ModelShape&, Own&)) {
  return write_folder(model_type, architecture, shape, [keys](FolderKeys& k, ModelShape& s) {
    auto own = s.own.as<Own>();
    keys(k, s, own);
  });
}

/// Returns the number of labels of a folder whose class is a ForSequenceClassification; 0 = it is of another class. A
/// model that continues text then has as many outputs per token in place of the head for tokens: 1 in a reward model.
int64_t outputs_in(const nlohmann::json& config);

/// Refuses attention_dropout to train; a family may set it as its HuggingFace::check_training.
void refuse_attention_dropout(const FolderConfig& config, const ModelShape& shape);

/// Writes null for the pad, bos and eos token ids if the vocabulary has no id `largest`. transformers' config class
/// would otherwise assume default ids up to `largest`, and would pad or begin with rows that the embedding does not
/// have.
void write_tokens(nlohmann::json& config, int64_t vocabulary, int64_t largest);

}  // namespace colossal::models
