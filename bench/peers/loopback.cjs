// Preloaded into a server that has no option for its address: on the loopback interface.
const { Server } = require("net");

const listen = Server.prototype.listen;
Server.prototype.listen = function (port, host, ...rest) {
  return listen.call(this, port, host ?? "127.0.0.1", ...rest);
};
