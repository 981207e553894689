// The sizes that one family of models has beside those of all: a value of a type that only the family knows.
#pragma once
#include <concepts>
#include <cstdint>
#include <memory>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/fields.h"

namespace colossal::models {

/// Of anything: no product of two sizes that a run can have overflows.
inline constexpr int64_t kLargestSize = (int64_t{1} << 40) - 1;

/// Holds a struct with `void fields(Fields&)`, which makes its members keys of [model], and `==`. Copies are
/// independent values.
///
///   struct VitSizes {
///     int64_t side = 0, patch = 0;
///     void fields(Fields& f);
///     bool operator==(const VitSizes&) const = default;
///   };
///   OwnSizes own = VitSizes{.side = 32, .patch = 4};
///   own.as<VitSizes>().patch;
class OwnSizes {
 public:
  OwnSizes() = default;
  template <class Sizes>
    requires(!std::same_as<std::remove_cvref_t<Sizes>, OwnSizes>)
  OwnSizes(Sizes sizes) : held_(std::make_unique<Held<Sizes>>(std::move(sizes))) {}
  OwnSizes(const OwnSizes& other) : held_(other.held_ ? other.held_->copy() : nullptr) {}
  OwnSizes(OwnSizes&&) = default;
  OwnSizes& operator=(OwnSizes other) {
    held_ = std::move(other.held_);
    return *this;
  }

  bool is_empty() const { return !held_; }
  /// Those held, or where there are none freshly made ones. Errors ("model"): sizes of another type are held.
  template <class Sizes>
  Sizes as() const {
    if (!held_) return {};
    const auto* held = dynamic_cast<const Held<Sizes>*>(held_.get());
    require(held, "model", "ModelShape::own must hold the sizes of this architecture: got those of another");
    return held->sizes;
  }
  /// The keys of what is held; none where nothing is.
  void fields(Fields& f) {
    if (held_) held_->fields(f);
  }
  bool operator==(const OwnSizes& other) const {
    return held_ && other.held_ ? held_->equals(*other.held_) : held_ == other.held_;
  }

 private:
  struct Any {
    virtual ~Any() = default;
    virtual std::unique_ptr<Any> copy() const = 0;
    virtual void fields(Fields& f) = 0;
    virtual bool equals(const Any& other) const = 0;
  };
  template <class Sizes>
  struct Held : Any {
    explicit Held(Sizes sizes) : sizes(std::move(sizes)) {}
    std::unique_ptr<Any> copy() const override { return std::make_unique<Held>(sizes); }
    void fields(Fields& f) override { sizes.fields(f); }
    bool equals(const Any& other) const override {
      const auto* held = dynamic_cast<const Held*>(&other);
      return held && held->sizes == sizes;
    }
    Sizes sizes;
  };
  std::unique_ptr<Any> held_;
};

}  // namespace colossal::models
