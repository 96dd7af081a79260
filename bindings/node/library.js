// Finds and loads libjitsym.so, and makes errors of what its functions answer.
'use strict';

const fs = require('node:fs');
const path = require('node:path');

const koffi = require('koffi');
const { VERSION, Status, functions } = require('./abi.js');

/** A call that failed. It has had no effect. `code` is the name of the status in C. */
class JitsymError extends Error {
  constructor(status, code, text, detail) {
    super(detail ? `${text}: ${detail}` : text);
    this.name = 'JitsymError';
    this.code = code;
    this.status = status;
  }
}

const AT_SECURE = 23;

/** What `JITSYM_LIB` names, unless the process has the rights of another user than the one who runs it. */
function givenLibrary() {
  const getauxval = koffi.load(null).func('getauxval', 'unsigned long', ['unsigned long']);
  return getauxval(AT_SECURE) ? undefined : process.env.JITSYM_LIB;
}

let loaded;

/** The functions of the library, from `JITSYM_LIB`, this package or the system's loader. A failure is not remembered. */
function load() {
  if (loaded) return loaded;
  const given = givenLibrary();
  const wanted = VERSION.join('.');
  // The package of a release has it.
  const bundled = path.join(__dirname, 'lib', process.arch, `libjitsym.so.${wanted}`);
  const names = [bundled, `libjitsym.so.${wanted}`, 'libjitsym.so'];
  if (!fs.existsSync(bundled)) names.shift();
  const problems = [];
  for (const name of given ? [given] : names) {
    try {
      const library = koffi.load(name);
      const found = Object.entries(functions).map(([name, [result, args]]) => [name, library.func(name, result, args)]);
      const bound = Object.fromEntries(found);
      const number = bound.jitsym_version_number();
      if (Math.floor(number / 1000000) === VERSION[0] && Math.floor(number / 1000) % 1000 === VERSION[1]) {
        return (loaded = bound);
      }
      problems.push(`${name} is version ${versionText(number)}, not ${wanted}`);
    } catch (error) {
      // koffi does not say of which file it speaks.
      problems.push(`${name}: ${error.message.replace('Failed to load shared library: ', '')}`);
    }
  }
  const hint = given ? '' : '; the variable JITSYM_LIB may name the file';
  throw new JitsymError(Status.ERR_LIBRARY, 'JITSYM_ERR_LIBRARY', 'no libjitsym', problems.join('; ') + hint);
}

/** The version that a number stands for. */
function versionText(number) {
  return [number / 1000000, (number / 1000) % 1000, number % 1000].map(Math.floor).join('.');
}

/** A text that a function of the library writes. */
function text(size, write) {
  const buffer = Buffer.alloc(size);
  check(write(buffer, size));
  return buffer.toString('utf8', 0, buffer.indexOf(0));
}

function lastError(session) {
  return text(4096, (buffer, size) => load().jitsym_last_error(session, buffer, size));
}

function check(status) {
  if (status === Status.OK) return;
  const { jitsym_status_name, jitsym_status_text } = load();
  // The last failure is that of the process, and can be asked for without a session.
  const detail = status === Status.ERR_NO_SINK || status === Status.ERR_SINK_FAILED ? lastError(null) : '';
  throw new JitsymError(status, jitsym_status_name(status), jitsym_status_text(status), detail);
}

module.exports = { JitsymError, check, lastError, load, text, versionText };
