// The one exception type of the project, and the checks that throw it.
//
// A message reads `[component] rule: got value; remedy`. The code that collects a rank's work (the launcher, the test
// harness, the command line) adds the rank, so no layer has to carry it: `[parallel] heads must ...: got 6, size 4
// (rank 2 of 4)`.
#pragma once
#include <sstream>
#include <stdexcept>
#include <string>

namespace colossal {

/// An exception of the library. Its text, what(), is "[component] message".
class Error : public std::runtime_error {
 public:
  /// `component` is the config section, file format or class that reports the error. `message` states the rule, the
  /// value and the remedy.
  Error(const std::string& component, const std::string& message)
      : std::runtime_error("[" + component + "] " + message), component_(component), message_(message) {}
  const std::string& component() const { return component_; }
  const std::string& message() const { return message_; }  ///< the message alone, without the component

  /// Marks this error as one that every rank throws, so that one rank is enough to report it.
  Error& mark_on_all_ranks() {
    is_on_all_ranks_ = true;
    return *this;
  }
  bool is_on_all_ranks() const { return is_on_all_ranks_; }

 private:
  std::string component_, message_;
  bool is_on_all_ranks_ = false;
};

/// Joins its arguments as text, the way a stream would print them: concat("got ", 3, ", size ", 4).
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

/// Throws Error(component, concat(parts...)) unless `ok` is true. It checks conditions that a user's input can break.
/// The parts are joined only on failure.
template <class... Parts>
void require(bool ok, const char* component, const Parts&... parts) {
  if (!ok) throw Error(component, concat(parts...));
}

/// Returns error.what() without the C++ stack that LibTorch appends to its own exceptions.
std::string plain_message(const std::exception& error);

/// Returns `message` with ` (rank r of n)` at its end. Returns it unchanged if it already names a rank or `size` is 1.
std::string with_rank(const std::string& message, int rank, int size);

}  // namespace colossal
