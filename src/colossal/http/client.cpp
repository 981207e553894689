#include "colossal/http/client.h"  // brings <utility>, which the Asio of Boost 1.74 needs before its own headers

#include <algorithm>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <limits>
#include <optional>

#include "colossal/base/error.h"

namespace colossal::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
using ErrorCode = boost::system::error_code;
using ResponseParser = beast::http::response_parser<beast::http::buffer_body>;

/// The parts of http://HOST[:PORT][/PREFIX].
struct Address {
  std::string host, port = "80", prefix, authority;
};

Address parse_url(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  const auto fail = [&] {
    return Error("http", concat("a URL must be http://HOST[:PORT][/PREFIX]: got ", url,
                                "; for https put a reverse proxy of your own in front"));
  };
  if (!url.starts_with(kScheme)) throw fail();
  Address address;
  const size_t slash = std::min(url.find('/', kScheme.size()), url.size());
  address.authority = url.substr(kScheme.size(), slash - kScheme.size());
  address.prefix = url.substr(slash);
  while (address.prefix.ends_with('/')) address.prefix.pop_back();
  const bool is_v6 = address.authority.starts_with('[');
  const size_t bracket = is_v6 ? address.authority.find(']') : 0;
  if (bracket == std::string::npos) throw fail();
  const size_t colon = std::min(address.authority.find(':', bracket), address.authority.size());
  address.host = is_v6 ? address.authority.substr(1, bracket - 1) : address.authority.substr(0, colon);
  if (colon < address.authority.size()) address.port = address.authority.substr(colon + 1);
  if (address.host.empty() || address.port.empty()) throw fail();
  return address;
}

/// Cuts bytes into lines.
class LineReader {
 public:
  explicit LineReader(const Client::OnLine& on_line) : on_line_(on_line) {}

  /// Returns false if the caller ends the reading.
  bool add(std::string_view bytes, Client::Time when) {
    partial_ += bytes;
    size_t begin = 0;
    for (size_t end; (end = partial_.find('\n', begin)) != std::string::npos; begin = end + 1) {
      std::string_view line = std::string_view(partial_).substr(begin, end - begin);
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (!on_line_(line, when)) return false;
    }
    partial_.erase(0, begin);
    return true;
  }

 private:
  const Client::OnLine& on_line_;
  std::string partial_;
};

}  // namespace

struct Client::State {
  explicit State(ClientOptions given) : options(std::move(given)), address(parse_url(options.url)) {}

  ClientOptions options;
  Address address;
  asio::io_context io{1};
  std::optional<beast::tcp_stream> stream;
  beast::flat_buffer buffer;

  /// Runs what was started, until it has ended or the server was silent for too long.
  void wait() {
    io.restart();
    io.run();
  }
  [[noreturn]] void fail(const char* what, const ErrorCode& error) {
    stream.reset();
    const std::string reason =
        error == beast::error::timeout ? concat("silent for ", options.timeout, " s") : error.message();
    throw Error("http", concat(what, " ", options.url, ": ", reason, "; is the server running?"));
  }
  void expire() {
    stream->expires_after(std::chrono::duration_cast<std::chrono::steady_clock::duration>(
        std::chrono::duration<double>(options.timeout)));
  }

  void connect() {
    asio::ip::tcp::resolver resolver(io);
    ErrorCode error;
    const auto found = resolver.resolve(address.host, address.port, error);
    if (error) fail("cannot find the host of", error);
    buffer.clear();
    stream.emplace(io);
    expire();
    stream->async_connect(found, [&](const ErrorCode& code, const asio::ip::tcp::endpoint&) { error = code; });
    wait();
    if (error) fail("cannot connect to", error);
    stream->socket().set_option(asio::ip::tcp::no_delay(true), error);
  }

  std::string request_text(const char* method, const std::string& path, const std::string& body) const {
    std::string text = concat(method, ' ', address.prefix, path, " HTTP/1.1\r\nHost: ", address.authority, "\r\n");
    if (!options.key.empty()) text += concat("Authorization: Bearer ", options.key, "\r\n");
    if (std::string_view(method) == "POST")
      text += concat("Content-Type: application/json\r\nContent-Length: ", body.size(), "\r\n");
    return text + "\r\n" + body;
  }

  /// Sends a request and reads the headers of the answer.
  ErrorCode exchange_heads(const std::string& text, ResponseParser& parser) {
    ErrorCode error;
    expire();
    asio::async_write(*stream, asio::buffer(text), [&](const ErrorCode& code, size_t) { error = code; });
    wait();
    // A server that refuses a body answers before it has read all of it, so the answer is read in any case.
    ErrorCode read_error;
    expire();
    beast::http::async_read_header(*stream, buffer, parser, [&](const ErrorCode& code, size_t) { read_error = code; });
    wait();
    return read_error;
  }

  /// Reads the rest of the answer. `take` gets its bytes and returns false to end the reading.
  template <class Take>
  bool read_body(ResponseParser& parser, const Take& take) {
    std::string piece(16 << 10, '\0');
    while (!parser.is_done()) {
      auto& body = parser.get().body();
      body.data = piece.data();
      body.size = piece.size();
      ErrorCode error;
      expire();
      // Some, not all: a piece is given on as soon as it arrives.
      beast::http::async_read_some(*stream, buffer, parser, [&](const ErrorCode& code, size_t) { error = code; });
      wait();
      if (error == beast::http::error::need_buffer) error = {};
      if (error == beast::error::timeout) fail("no answer from", error);
      if (!take(std::string_view(piece.data(), piece.size() - body.size))) return false;
      if (error) return false;
    }
    return true;
  }

  Reply send(const char* method, const std::string& path, const std::string& body, const OnLine& on_line) {
    const std::string text = request_text(method, path, body);
    std::optional<ResponseParser> parser;
    bool is_used = stream.has_value();
    while (true) {
      if (!stream) connect();
      parser.emplace();
      parser->body_limit(std::numeric_limits<uint64_t>::max());  // Boost 1.74 takes boost::none for 0
      const ErrorCode error = exchange_heads(text, *parser);
      if (!error) break;
      // The server may have closed a connection that was idle; then it has not read the request.
      if (!is_used || parser->got_some() || error == beast::error::timeout) fail("no answer from", error);
      stream.reset();
      is_used = false;
    }
    return read_reply(*parser, on_line);
  }

  Reply read_reply(ResponseParser& parser, const OnLine& on_line) {
    Reply reply;
    reply.status = static_cast<int>(parser.get().result_int());
    for (const auto& field : parser.get())
      reply.headers.add(std::string(field.name_string()), std::string(field.value()));
    const std::string* type = reply.headers.find("Content-Type");
    const bool is_stream = on_line && type && type->starts_with("text/event-stream");
    LineReader lines(on_line);
    reply.is_complete = read_body(parser, [&](std::string_view bytes) {
      if (is_stream) return lines.add(bytes, std::chrono::steady_clock::now());
      reply.body += bytes;
      return true;
    });
    if (!reply.is_complete || !parser.keep_alive()) stream.reset();
    return reply;
  }
};

Client::Client(ClientOptions options) : state_(std::make_unique<State>(std::move(options))) {}
Client::~Client() = default;
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;

Reply Client::get(const std::string& path) { return state_->send("GET", path, "", {}); }

Reply Client::post(const std::string& path, const std::string& json, const OnLine& on_line) {
  return state_->send("POST", path, json, on_line);
}

}  // namespace colossal::http
