// Values that are made from texts, each text once.
//
//   MadeOnce<Regex> patterns;
//   const Regex& pattern = patterns.of("[0-9]+", [&] { return Regex("[0-9]+"); });
#pragma once
#include <memory>
#include <string>
#include <unordered_map>

namespace colossal::text {

/// Thread safety: none. Memory: at most kMaxValues values; if there would be more, it forgets all.
template <class T>
class MadeOnce {
 public:
  static constexpr size_t kMaxValues = 1000;

  /// Returns the value of `text`, which `make` returns if it is not there. It is valid until the next call.
  template <class Make>
  const T& of(const std::string& text, Make make) {
    const auto at = values_.find(text);
    if (at != values_.end()) return *at->second;
    auto value = std::make_unique<const T>(make());
    if (values_.size() == kMaxValues) values_.clear();
    return *(values_[text] = std::move(value));
  }

 private:
  std::unordered_map<std::string, std::unique_ptr<const T>> values_;
};

}  // namespace colossal::text
