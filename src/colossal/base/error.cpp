#include "colossal/base/error.h"

namespace colossal {

std::string plain_message(const std::exception& error) {
  const std::string text = error.what();
  // LibTorch separates its message from the stack by "\nException raised from". The message itself may
  // have several lines.
  return text.substr(0, text.find("\nException raised from"));
}

std::string with_rank(const std::string& message, int rank, int size) {
  if (size <= 1 || message.find(" (rank ") != std::string::npos) return message;
  return concat(message, " (rank ", rank, " of ", size, ")");
}

}  // namespace colossal
