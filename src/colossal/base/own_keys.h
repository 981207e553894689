// OwnKeys holds the config keys that only one model family, objective or adapter has, as a value whose type only that
// owner uses.
//
//   struct VitSizes {
//     int64_t side = 0, patch = 0;
//     void fields(Fields& f) {
//       f.integer("side", side, "pixels", "side of an image", 1);
//       f.integer("patch", patch, "pixels", "side of a patch", 1);
//     }
//     bool operator==(const VitSizes&) const = default;
//   };
//
//   OwnKeys own = VitSizes{.side = 32, .patch = 4};
//   const int64_t patch = own.as<VitSizes>().patch;       // 4
#pragma once
#include <concepts>
#include <memory>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/fields.h"

namespace colossal {

/// A holder of one struct of any type, or of none. The struct must have `==` and `void fields(Fields&)`, which makes
/// its members keys of a table. Copies are independent values.
class OwnKeys {
 public:
  OwnKeys() = default;
  template <class Keys>
    requires(!std::same_as<std::remove_cvref_t<Keys>, OwnKeys>)
  OwnKeys(Keys keys) : held_(std::make_unique<Held<Keys>>(std::move(keys))) {}
  OwnKeys(const OwnKeys& other) : held_(other.held_ ? other.held_->copy() : nullptr) {}
  OwnKeys(OwnKeys&&) = default;
  OwnKeys& operator=(OwnKeys other) {
    held_ = std::move(other.held_);
    return *this;
  }

  bool is_empty() const { return !held_; }
  /// Returns true if a struct of this type is held.
  template <class Keys>
  bool holds() const {
    return dynamic_cast<const Held<Keys>*>(held_.get()) != nullptr;
  }
  /// Returns a copy of the held struct, or a default-made one if none is held. Errors ("model"): the held struct has
  /// another type.
  template <class Keys>
  Keys as() const {
    if (!held_) return {};
    const auto* held = dynamic_cast<const Held<Keys>*>(held_.get());
    require(held, "model", "own keys must be read as the type that they were made from: got another type");
    return held->keys;
  }
  /// Visits the fields of the held struct, if there is one.
  void fields(Fields& f) {
    if (held_) held_->fields(f);
  }
  bool operator==(const OwnKeys& other) const {
    return held_ && other.held_ ? held_->equals(*other.held_) : held_ == other.held_;
  }

 private:
  struct Any {
    virtual ~Any() = default;
    virtual std::unique_ptr<Any> copy() const = 0;
    virtual void fields(Fields& f) = 0;
    virtual bool equals(const Any& other) const = 0;
  };
  template <class Keys>
  struct Held : Any {
    explicit Held(Keys keys) : keys(std::move(keys)) {}
    std::unique_ptr<Any> copy() const override { return std::make_unique<Held>(keys); }
    void fields(Fields& f) override { keys.fields(f); }
    bool equals(const Any& other) const override {
      const auto* held = dynamic_cast<const Held*>(&other);
      return held && held->keys == keys;
    }
    Keys keys;
  };
  std::unique_ptr<Any> held_;
};

}  // namespace colossal
