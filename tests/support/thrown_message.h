// The message of an expected exception.
#pragma once
#include <exception>
#include <string>

namespace colossal::test {

/// Returns the message of the exception that `fn` throws, or "" if it throws none.
template <class Fn>
std::string thrown_message(const Fn& fn) {
  try {
    fn();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace colossal::test
