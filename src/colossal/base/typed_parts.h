// Values that are found by their type. A struct that many kinds of code share holds what only one kind reads as such
// parts, so a new kind brings a struct of its own and edits no existing one.
//
//   struct Frames {                                                // beside the code that reads it
//     int64_t count;
//   };
//
//   step.parts.set(Frames{16});                                    // the caller that runs the model
//   const Frames* frames = step.parts.find<Frames>();              // a layer of that kind; null = not set
//   const nn::ForwardContext next{.parts = {Frames{8}, nn::Sequences{{5, 3}}}};   // parts may be listed
#pragma once
#include <concepts>
#include <memory>
#include <type_traits>
#include <typeindex>
#include <utility>
#include <vector>

namespace colossal {

/// Values of distinct types. Copies share the values, which do not change.
/// Cost: find() compares the types of the few parts; a copy counts references.
class TypedParts {
 public:
  TypedParts() = default;
  /// Holds each of `parts`.
  template <class... Parts>
    requires(sizeof...(Parts) > 0 && (!std::same_as<std::remove_cvref_t<Parts>, TypedParts> && ...))
  TypedParts(Parts&&... parts) {  // NOLINT: a list of parts is one
    (set(std::forward<Parts>(parts)), ...);
  }

  /// Holds `part`, instead of an earlier one of its type.
  template <class Part>
  void set(Part part) {
    const std::type_index type(typeid(Part));
    auto value = std::make_shared<const Part>(std::move(part));
    for (auto& [known, held] : parts_)
      if (known == type) {
        held = std::move(value);
        return;
      }
    parts_.emplace_back(type, std::move(value));
  }

  /// Returns the part of this type; null = there is none. It is valid as long as these parts, or a copy, hold it.
  template <class Part>
  const Part* find() const {
    const std::type_index type(typeid(Part));
    for (const auto& [known, held] : parts_)
      if (known == type) return static_cast<const Part*>(held.get());
    return nullptr;
  }

 private:
  std::vector<std::pair<std::type_index, std::shared_ptr<const void>>> parts_;
};

}  // namespace colossal
